// A worker that leaves while it is still joining.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/box_cluster.h"
#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

// A TCP port on loopback that never answers: connections are accepted, or wait forever.
class SilentServer {
 public:
  explicit SilentServer(bool takes_connections)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    require(bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0, "bind");
    require(listen(fd_, takes_connections ? 16 : 0) == 0, "listen");
    require(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
    where_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    if (!takes_connections) filler_ = connect_to(where_);  // fills the queue of pending connections
  }
  ~SilentServer() {
    close(fd_);
    if (filler_ >= 0) close(filler_);
  }
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;

  const std::string& where() const { return where_; }

 private:
  int fd_ = -1, filler_ = -1;
  std::string where_;
};

// Returns whether a rank's join is waiting: at the box as a member of the job, for the answer to a
// JOIN that the server has not read, or for the connection.
bool is_joining(const Daemon& daemon, const std::string& box) {
  if (box == daemon.control()) {
    const auto jobs = nlohmann::json::parse(daemon.get("/api/v1/jobs"))["jobs"];
    return jobs.size() == 1 && jobs[0]["state"] == "gathering";
  }
  // See proc_net_tcp(5): local and remote address, state (02: SYN_SENT), bytes to send and to read.
  char port[8];
  std::snprintf(port, sizeof(port), ":%04X", std::stoi(box.substr(box.rfind(':') + 1)));
  std::ifstream table("/proc/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues;
    words >> slot >> local >> remote >> state >> queues;
    if (remote.ends_with(port) && state == "02") return true;
    if (local.ends_with(port) && queues.size() == 17 && queues.substr(9) != "00000000" &&
        state == "01") {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("pbox_leave ends a join that waits for ranks, for an answer, or for a connection") {
  Daemon daemon;
  const SilentServer silent(true), full(false);
  for (const std::string& box : {daemon.control(), silent.where(), full.where()}) {
    INFO(box);
    WorkerProcess rank([&](Line& line) {
      const AbiWorker worker({.box = box, .world_size = 2, .adjust = [](pbox_options& options) {
                                options.join_timeout_ms = 600'000;  // longer than the test may take
                              }});
      worker.tensor("tensor", 100);
      pbox_status joined = PBOX_OK;
      std::thread waits([&] { joined = pbox_join(worker.context()); });
      line.await_go();
      worker.leave();
      waits.join();
      line.say(worker.must_be(PBOX_CLOSED, joined));
      worker.must_be(PBOX_CLOSED, pbox_join(worker.context()));
    });
    REQUIRE(await([&] { return is_joining(daemon, box); }));
    rank.go();
    CHECK(rank.heard() == "this worker left the job before it had joined");
    CHECK(rank.finish() == "");
  }
  CHECK(daemon.await_no_jobs(kDeadlineMs));
}

}  // namespace pbox::test
