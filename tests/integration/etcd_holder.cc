// etcd_holder NAME TTL_S ENDPOINT...: claims the key "lead" and prints "holds" once it has the
// claim. From then on it writes its name to "work", always with the fence of that first claim, even
// if it has lost the claim since. It prints "written" or "refused" for each attempt that etcd
// answers. Runs until it is killed.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "appliance/cluster/claim.h"
#include "appliance/cluster/etcd_store.h"

namespace pbox::cluster {
namespace {

class Holder {
 public:
  Holder(std::string name, const EtcdOptions& options)
      : name_(std::move(name)), store_(make_etcd_store(context_, options)) {
    store_->start({.on_session = [this](int64_t) {
      if (claim_) claim_->on_session();
    }});
    claim_.emplace(
        context_, *store_, "lead", [this] { return name_; }, [this] { begin(); });
  }
  void run() { context_.run(); }

 private:
  static void say(const char* text) {
    std::puts(text);
    std::fflush(stdout);
  }
  void begin() {
    if (!claim_ || !claim_->held() || fence_) return;
    fence_ = claim_->fence();
    say("holds");
    write();
  }
  void write() {
    store_->commit({.conditions = {*fence_}, .puts = {{"work", name_, false}}, .deletes = {}},
                   [this](const Result<Outcome>& outcome) {
                     if (outcome) say(outcome->committed ? "written" : "refused");
                     timer_.expires_after(std::chrono::milliseconds(100));
                     timer_.async_wait([this](const boost::system::error_code&) { write(); });
                   });
  }

  boost::asio::io_context context_;
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      context_.get_executor()};
  std::string name_;
  boost::asio::steady_timer timer_{context_};
  std::unique_ptr<Store> store_;
  std::optional<Claim> claim_;
  std::optional<Condition> fence_;
};

}  // namespace
}  // namespace pbox::cluster

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  pbox::cluster::EtcdOptions options{.prefix = "pbox/holder/"};
  options.lease_ttl_s = static_cast<uint32_t>(std::atoi(argv[2]));
  options.endpoints.assign(argv + 3, argv + argc);
  pbox::cluster::Holder(argv[1], options).run();
}
