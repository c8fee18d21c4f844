// A join that fails and is repeated on the same context.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/loopback_listener.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

// A TCP port on loopback that closes the first connection, then refuses all others.
class ClosingServer {
 public:
  ClosingServer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    require(bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0, "bind");
    require(listen(fd_, 1) == 0, "listen");
    require(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
    where_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    closes_ = std::thread([this] {
      close(accept(fd_, nullptr, nullptr));
      close(fd_);
    });
  }
  ~ClosingServer() { await_end(); }
  ClosingServer(const ClosingServer&) = delete;
  ClosingServer& operator=(const ClosingServer&) = delete;

  void await_end() {
    if (closes_.joinable()) closes_.join();
  }
  const std::string& where() const { return where_; }

 private:
  int fd_ = -1;
  std::string where_;
  std::thread closes_;
};

void exchange_alone(const AbiWorker& worker) {
  std::vector<float> values(20'000, 3.0f);
  worker.push_pull(0, values.data(), values.data());
  worker.wait(0);
  require(values.front() == 3.0f && values.back() == 3.0f, "a wrong sum");
}

}  // namespace

TEST_CASE("a worker that a box has refused can join with the same context later") {
  Daemon daemon;
  WorkerProcess first([&](Line& line) {
    const AbiWorker worker({.box = daemon.control()});
    worker.tensor("t", 20'000);
    worker.join();
    line.say("joined");
    line.await_go();
    worker.leave();
  });
  REQUIRE(first.heard() == "joined");
  WorkerProcess second([&](Line& line) {
    const AbiWorker worker({.box = daemon.control()});
    worker.tensor("t", 20'000);
    for (int attempt = 0; attempt < 3; ++attempt) {
      require_contains(worker.must_be(PBOX_ALREADY_EXISTS, pbox_join(worker.context())), "rank 0");
    }
    line.say("refused");
    line.await_go();
    worker.join();
    exchange_alone(worker);
    worker.leave();
  });
  REQUIRE(second.heard() == "refused");
  first.go();
  CHECK(first.finish() == "");
  REQUIRE(daemon.await_no_jobs(kDeadlineMs));
  second.go();
  CHECK(second.finish() == "");
}

TEST_CASE("a join passes over boxes that close the connection or do not answer") {
  const LoopbackListener silent;
  Daemon daemon;
  WorkerProcess worker_process([&](Line&) {
    ClosingServer closing;
    const std::string others = closing.where() + ",127.0.0.1:" + std::to_string(silent.port());
    const AbiWorker worker(
        {.box = others + "," + daemon.control(),
         .adjust = [](pbox_options& options) { options.join_timeout_ms = 6'000; }});
    worker.tensor("t", 20'000);
    worker.join();
    exchange_alone(worker);
    worker.leave();
  });
  CHECK(worker_process.finish() == "");
}

}  // namespace pbox::test
