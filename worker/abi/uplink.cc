// The C ABI for boxes (uplink.h).
#include "pbox/uplink.h"

#include "worker/abi/context.h"

using pbox::Status;
using pbox::worker::Client;
using pbox::worker::guarded;
using pbox::worker::invalid_argument;

namespace pbox::worker {

class CallerSource : public OperationSource {
 public:
  explicit CallerSource(const pbox_source& source) : source_(source) {}
  bool next(Operation& operation) override {
    operation = {};
    const void* input = nullptr;
    void* output = nullptr;
    if (source_.next(source_.user, &operation.tensor, &input, &output) == 0) return false;
    operation.input = static_cast<const std::byte*>(input);
    operation.output = static_cast<std::byte*>(output);
    return true;
  }
  bool may_sleep() override { return source_.may_sleep(source_.user) != 0; }
  int fd() const override { return source_.fd; }
  void done(uint32_t tensor) override { source_.done(source_.user, tensor); }
  void failed(ErrorCode status) override {
    source_.failed(source_.user, static_cast<pbox_status>(status));
  }

 private:
  const pbox_source source_;
};

}  // namespace pbox::worker

pbox_status pbox_box_pipelines(pbox_context* context, uint32_t* count) {
  return guarded(context, [&](Client& client) -> Status {
    if (count == nullptr) return invalid_argument("count is NULL");
    const auto pipelines = client.box_pipelines();
    if (!pipelines) return pipelines.error();
    *count = *pipelines;
    return pbox::ok_status();
  });
}

pbox_status pbox_create_uplink(const pbox_options* caller_options, const pbox_uplink* uplink,
                               pbox_context** context) {
  auto options = pbox::worker::read_options(caller_options);
  if (options && uplink == nullptr) {
    options = invalid_argument("uplink is NULL");
  } else if (options && (uplink->part >= uplink->parts ||
                         uplink->parts > pbox::limits::kPartsPerJobMax || uplink->workers == 0)) {
    options = invalid_argument(
        "part " + std::to_string(uplink->part) + " of " + std::to_string(uplink->parts) + " with " +
        std::to_string(uplink->workers) +
        " workers is not valid: part must be below parts, parts at most " +
        std::to_string(pbox::limits::kPartsPerJobMax) + ", and workers at least 1");
  } else if (options && options->collective) {
    options = invalid_argument("mode collective has no sums that a box could send to another box");
  }
  if (options) {
    options->part = uplink->part;
    options->parts = uplink->parts;
    options->workers = uplink->workers;
    options->caller_keeps_results = true;
  }
  return pbox::worker::create_context(options, context);
}

pbox_status pbox_all_workers(pbox_context* context, uint32_t* count) {
  return guarded(context, [&](Client& client) -> Status {
    if (count == nullptr) return invalid_argument("count is NULL");
    *count = client.session().workers();
    if (*count > 0) return pbox::ok_status();
    return pbox::Error{pbox::ErrorCode::kVersionMismatch,
                       "the upper box does not report its number of workers; upgrade it"};
  });
}

pbox_status pbox_run_source(pbox_context* context, const pbox_source* source) {
  return guarded(context, [&](Client& client) -> Status {
    const bool is_whole = source != nullptr && source->next != nullptr &&
                          source->may_sleep != nullptr && source->done != nullptr &&
                          source->failed != nullptr && source->fd >= 0;
    if (!is_whole)
      return invalid_argument(
          "source, next, may_sleep, done and failed must not be NULL, and fd must not be negative");
    auto own = std::make_unique<pbox::worker::CallerSource>(*source);
    const Status runs = client.run_source(*own);
    if (runs) context->source = std::move(own);
    return runs;
  });
}

pbox_status pbox_leave_because(pbox_context* context, const char* reason) {
  return guarded(context, [&](Client& client) -> Status {
    if (reason == nullptr) return invalid_argument("reason is NULL");
    return client.leave(reason);
  });
}
