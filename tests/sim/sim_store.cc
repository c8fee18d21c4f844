#include "tests/sim/sim_store.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace pbox::sim {
namespace {

constexpr uint64_t kTimeoutNs = 2 * kNanosPerSecond;
// Half of all events arrive late, by up to this many latencies: 1 to 300 ms.
constexpr uint64_t kLatenciesLate = 600;

Error no_answer() {
  return {ErrorCode::kTimeout, "the simulated store does not answer"};
}

}  // namespace

// A watch on keys. It delivers events in order, each change once.
class SimStore::Subscription final : public cluster::Watch {
 public:
  Subscription(SimStore& store, const std::string& prefix, int64_t revision,
               cluster::WatchHandler handler)
      : store_(store), handler_(std::move(handler)) {
    number_ = store.server_.watch(prefix, revision,
                                  [this](const StoreServer::Events& events) { add(events); });
  }
  ~Subscription() override {
    store_.server_.unwatch(number_);
    *alive_ = false;
  }

 private:
  void add(const StoreServer::Events& events) {
    EventQueue& queue = store_.queue_;
    const bool is_late = store_.rng_.below(2) != 0;
    const uint64_t due_ns = std::max(queue.now_ns(), store_.cut_off_until_ns_) +
                            store_.latency_ns_ +
                            (is_late ? store_.rng_.below(kLatenciesLate * store_.latency_ns_) : 0);
    newest_due_ns_ = std::max(newest_due_ns_, due_ns);
    waiting_.push_back(events);
    store_.at(newest_due_ns_, [this, alive = alive_] {
      if (*alive) deliver();
    });
  }

  void deliver() {
    if (store_.is_cut_off()) {
      return store_.at(store_.cut_off_until_ns_, [this, alive = alive_] {
        if (*alive) deliver();
      });
    }
    const StoreServer::Events events = std::move(waiting_.front());
    waiting_.pop_front();
    handler_.on_events(events);
  }

  SimStore& store_;
  cluster::WatchHandler handler_;
  uint64_t number_ = 0;
  uint64_t newest_due_ns_ = 0;
  std::deque<StoreServer::Events> waiting_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

SimStore::SimStore(EventQueue& queue, StoreServer& server, Meter& meter, uint64_t latency_ns,
                   uint64_t seed)
    : queue_(queue), server_(server), meter_(meter), latency_ns_(latency_ns), rng_(seed) {}

SimStore::~SimStore() {
  *alive_ = false;
  queue_.after(kStoreLeaseNs,
               [&server = server_, session = session_] { server.end_session(session); });
}

void SimStore::at(uint64_t due_ns, std::function<void()> function) {
  queue_.at(due_ns, [this, alive = alive_, function = std::move(function)] {
    if (*alive) meter_.run(function);
  });
}

void SimStore::start(cluster::Observer observer) {
  observer_ = std::move(observer);
  begin_session();
}

void SimStore::begin_session() {
  at(std::max(queue_.now_ns(), cut_off_until_ns_) + 2 * latency_ns_, [this] {
    if (session_ != 0) return;
    if (is_cut_off()) return begin_session();
    session_ = server_.begin_session();
    set_up(true);
    observer_.on_session(session_);
  });
}

void SimStore::set_up(bool up) {
  if (up == health_.up) return;
  health_.up = up;
  health_.error = up ? "" : no_answer().message;
  observer_.on_health(health_);
}

void SimStore::cut_off(uint64_t until_ns, bool stops_process) {
  const bool was_cut_off = is_cut_off();
  if (stops_process) stopped_until_ns_ = std::max(stopped_until_ns_, until_ns);
  cut_off_until_ns_ = std::max(cut_off_until_ns_, until_ns);
  if (was_cut_off || !is_cut_off()) return;
  at(queue_.now_ns() + kStoreLeaseNs, [this, session = session_] {
    if (is_cut_off() && session != 0) lose_session(session);
  });
}

void SimStore::lose_session(int64_t session) {
  server_.end_session(session);
  at(std::max(queue_.now_ns(), stopped_until_ns_), [this, session] {
    if (queue_.now_ns() < stopped_until_ns_) return lose_session(session);
    if (session_ != session) return;
    session_ = 0;
    set_up(false);
    observer_.on_session(0);
    begin_session();
  });
}

void SimStore::call(std::function<std::function<void()>()> apply, std::function<void(Error)> fail) {
  const auto fail_later = [this, fail = std::move(fail)] {
    at(std::max(queue_.now_ns() + kTimeoutNs, stopped_until_ns_), [this, fail] {
      set_up(!is_cut_off());
      fail(no_answer());
    });
  };
  at(queue_.now_ns() + latency_ns_, [this, apply = std::move(apply), fail_later] {
    if (is_cut_off()) return fail_later();
    at(queue_.now_ns() + latency_ns_, [this, answer = apply(), fail_later] {
      if (is_cut_off()) return fail_later();
      set_up(true);
      answer();
    });
  });
}

void SimStore::get(const std::string& prefix, std::function<void(Result<cluster::Snapshot>)> done) {
  call([this, prefix, done] { return [snapshot = server_.get(prefix), done] { done(snapshot); }; },
       [done](const Error& error) { done(error); });
}

void SimStore::commit(cluster::Transaction transaction,
                      std::function<void(Result<cluster::Outcome>)> done) {
  check_(transaction);
  const bool needs_session = std::any_of(transaction.puts.begin(), transaction.puts.end(),
                                         [](const cluster::Put& put) { return put.ephemeral; });
  call(
      [this, transaction = std::move(transaction), needs_session, done] {
        auto outcome = Result<cluster::Outcome>(
            Error{ErrorCode::kUnavailable, "the simulated store has ended this box's session"});
        if (!needs_session || server_.has_session(session_)) {
          outcome = server_.commit(transaction, session_);
        }
        return [outcome, done] { done(outcome); };
      },
      [done](const Error& error) { done(error); });
}

std::unique_ptr<cluster::Watch> SimStore::watch(const std::string& prefix, int64_t revision,
                                                cluster::WatchHandler handler) {
  return std::make_unique<Subscription>(*this, prefix, revision, std::move(handler));
}

}  // namespace pbox::sim
