// pboxd from the outside: signals, bad configurations, ports in use, and invalid input.
#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

using Catch::Contains;

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    char name[] = "/tmp/pbox_test_XXXXXX";
    close(mkstemp(name));
    path_ = name;
    write(text);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void require_serves(const Daemon& daemon) {
  const auto outcome = run_sums({.box = daemon.control(), .job = "next", .rounds = 2});
  CHECK(outcome.failure == "");
}

std::string random_bytes(Rng& rng, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.below(256));
  return bytes;
}

void send_all(int fd, const std::string& bytes) {
  REQUIRE(fd >= 0);
  // The peer may have closed already, which is not a failure here.
  static_cast<void>(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

std::string receive_all(int fd) {
  const timeval limit{30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::string answer;
  std::array<char, 4096> buffer;
  for (ssize_t bytes = 0; (bytes = recv(fd, buffer.data(), buffer.size(), 0)) > 0;) {
    answer.append(buffer.data(), static_cast<size_t>(bytes));
  }
  return answer;
}

}  // namespace

TEST_CASE("SIGHUP reads the file again: a log level applies at once, a port only after a restart") {
  TemporaryFile file("[log]\nlevel = warn\n");
  Daemon daemon({"--config=" + file.path()});
  CHECK(daemon.program().errors().find("ready") == std::string::npos);
  file.write("[log]\nlevel = info\n[data]\nmtu = 1500\n");
  daemon.program().signal(SIGHUP);
  CHECK(daemon.program().await_errors("log.level: warn -> info", kDeadlineMs));
  CHECK(daemon.program().await_errors("data.mtu", kDeadlineMs));
  CHECK_THAT(daemon.program().errors(), Contains("after a restart"));
  require_serves(daemon);
  CHECK(daemon.program().await_errors("job_started", kDeadlineMs));

  file.write("[log]\nlevel = shouting\n");
  daemon.program().signal(SIGHUP);
  CHECK(daemon.program().await_errors("shouting", kDeadlineMs));
  CHECK_THAT(daemon.program().errors(), Contains("nothing was changed"));
  require_serves(daemon);
}

TEST_CASE("SIGHUP changes the memory limit of jobs and the limit of open connections") {
  const auto limit_of = [](const Daemon& daemon) {
    const std::string name = "\npbox_box_job_memory_limit_bytes ";
    const std::string metrics = daemon.get("/metrics");
    return std::stod(metrics.substr(metrics.find(name) + name.size()));
  };
  TemporaryFile file("[memory]\njob_share = 0.5\n");
  Daemon daemon({"--config=" + file.path()});
  const double before = limit_of(daemon);
  file.write("[memory]\njob_share = 0.25\n[control]\nconnections_max = 1\n");
  daemon.program().signal(SIGHUP);
  REQUIRE(daemon.program().await_errors("memory.job_share: 0.5 -> 0.25", kDeadlineMs));
  CHECK(limit_of(daemon) == Approx(before / 2));

  const int first = connect_to(daemon.control());
  send_all(first, std::string("\x40\0\0\0", 4));  // the box waits for the rest of the message
  const int second = connect_to(daemon.control());
  CHECK(receive_all(second).empty());  // closed at once, without an answer
  close(second);
  file.write("[memory]\njob_share = 0.25\n");
  daemon.program().signal(SIGHUP);
  REQUIRE(daemon.program().await_errors("connections_max: 1 -> 4096", kDeadlineMs));
  require_serves(daemon);
  close(first);
}

TEST_CASE("the debug log has entries that the info log leaves out") {
  Daemon plain;
  require_serves(plain);
  CHECK(plain.program().await_errors("job_started", kDeadlineMs));
  CHECK_THAT(plain.program().errors(), !Contains("job_admitted"));

  Daemon daemon({"--log.level=debug"});
  require_serves(daemon);
  CHECK(daemon.program().await_errors("debug session_installed", kDeadlineMs));
  CHECK_THAT(daemon.program().errors(), Contains("debug job_admitted"));
  daemon.program().signal(SIGHUP);
  CHECK(daemon.program().await_errors("debug reload: 0 keys were applied", kDeadlineMs));
}

TEST_CASE("if a pipeline has a core of its own, control and admin stay off that core") {
  Daemon daemon({"--pipeline.count=1", "--pipeline.pin=on"});
  const auto box = nlohmann::json::parse(daemon.get("/api/v1/box"));
  const int pipeline_cpu = box.at("pipelines").at(0).at("cpu");
  cpu_set_t control;
  REQUIRE(sched_getaffinity(daemon.program().pid(), sizeof(control), &control) == 0);
  const std::string log = daemon.program().errors();
  if (log.find("control and admin share cores") != std::string::npos) {
    WARN("there is one core: nothing to check");
    return;
  }
  CHECK_THAT(log, Contains("control and admin run on cpus"));
  CHECK_FALSE(CPU_ISSET(static_cast<size_t>(pipeline_cpu), &control));
  CHECK(CPU_COUNT(&control) > 0);
}

TEST_CASE("a second SIGTERM while draining does not spoil the exit status") {
  Daemon daemon;
  daemon.program().signal(SIGTERM);
  daemon.program().signal(SIGTERM);
  CHECK(daemon.program().wait_exit(5'000) == 0);
}

TEST_CASE("a disk that hangs does not keep the daemon from ending, and the log names it") {
  std::string folder = std::filesystem::temp_directory_path() / "pbox-hang-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  // Opening this file blocks for ever, as on a file server that does not answer.
  std::filesystem::create_directories(folder + "/hung/1");
  REQUIRE(mkfifo((folder + "/hung/1/manifest.json").c_str(), 0600) == 0);
  {
    Daemon daemon({"--snapshots.directory=" + folder, "--log.level=debug"});
    WorkerProcess worker([&](Line&) {
      const AbiWorker rank(
          {.box = daemon.control(), .job = "hung", .adjust = [](pbox_options& options) {
             options.mode = PBOX_MODE_OPTIMIZE;
             options.restore = "latest";
           }});
      rank.tensor("weights", 10);
      pbox_optimizer_options sgd;
      pbox_optimizer_options_init(&sgd, PBOX_SGD);
      rank.must(pbox_set_optimizer(rank.context(), &sgd));
      rank.join();
    });
    REQUIRE(daemon.program().await_errors("worker_joined", kDeadlineMs));
    daemon.program().signal(SIGTERM);
    CHECK(daemon.program().wait_exit(kDeadlineMs) == 1);
    CHECK_THAT(daemon.program().errors(),
               Contains("exit_forced: the disk of the snapshots ([snapshots] directory = " +
                        folder + ") did not end within 5 s"));
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("SIGINT ends the daemon like SIGTERM") {
  Daemon daemon;
  daemon.program().signal(SIGINT);
  CHECK(daemon.program().wait_exit(5'000) == 0);
}

TEST_CASE("a bad configuration file is refused with all errors at once and exit status 2") {
  TemporaryFile file("[control]\nport = 70000\n[jobs]\nchunk_byte = 1\n[log]\nlevel = loud\n");
  Program program(daemon_path(), {"--config=" + file.path()});
  CHECK(program.wait_exit(kDeadlineMs) == 2);
  const std::string errors = program.errors();
  CHECK_THAT(errors, Contains("control.port = 70000") && Contains("65535"));
  CHECK_THAT(errors, Contains("jobs.chunk_byte") && Contains("jobs.chunk_bytes"));
  CHECK_THAT(errors, Contains("log.level = loud") && Contains("debug, info, warn, error"));
}

TEST_CASE("a port in use is reported with a clear error and exit status 1") {
  Daemon first;
  const auto port_of = [](const std::string& where) { return where.substr(where.rfind(':') + 1); };
  Program control(daemon_path(), daemon_arguments({"--control.port=" + port_of(first.control())}));
  CHECK(control.wait_exit(kDeadlineMs) == 1);
  CHECK_THAT(control.errors(), Contains("cannot start") && Contains(port_of(first.control())));
  CHECK_THAT(control.errors(), Contains("another pboxd") || Contains("in use"));

  Program admin(daemon_path(), daemon_arguments({"--admin.port=" + port_of(first.admin())}));
  CHECK(admin.wait_exit(kDeadlineMs) == 1);
  CHECK_THAT(admin.errors(), Contains(port_of(first.admin())));

  const std::string data = std::to_string(first.data_ports().at(0));
  Program third(daemon_path(),
                daemon_arguments({"--data.port_first=" + data, "--pipeline.count=1"}));
  CHECK(third.wait_exit(kDeadlineMs) == 1);
  CHECK_THAT(third.errors(), Contains(data));
  require_serves(first);
}

TEST_CASE("invalid input on the control port is answered or dropped, and the next job works") {
  Daemon daemon;
  Rng rng(7);
  for (int count = 0; count < 40; ++count) {  // random bytes, whatever length they announce
    const int fd = connect_to(daemon.control());
    send_all(fd, random_bytes(rng, 1 + rng.below(3000)));
    close(fd);
  }
  const int oversize = connect_to(daemon.control());
  send_all(oversize, std::string("\xff\xff\xff\x7f", 4));
  CHECK_THAT(receive_all(oversize), Contains("2147483647 bytes exceeds the limit"));
  close(oversize);

  const int stranger = connect_to(daemon.control());
  send_all(stranger, std::string("\x05\0\0\0\xff\xff\xff\xff\xff", 9));
  CHECK_THAT(receive_all(stranger), Contains("not a PBox control message"));
  close(stranger);

  const int half = connect_to(daemon.control());
  send_all(half, std::string("\x40\0\0\0\x0a\x3e", 6));  // 64 bytes announced, 2 sent
  close(half);
  require_serves(daemon);
}

TEST_CASE("two hundred idle connections keep nobody out") {
  Daemon daemon;
  std::vector<int> idle;
  for (int count = 0; count < 200; ++count) idle.push_back(connect_to(daemon.control()));
  CHECK(std::count(idle.begin(), idle.end(), -1) == 0);
  require_serves(daemon);
  for (const int fd : idle) close(fd);
  require_serves(daemon);
}

TEST_CASE("random packets at the data ports are counted and dropped, even during a job") {
  Daemon daemon;
  const auto ports = daemon.data_ports();
  SumsOptions options{.box = daemon.control(), .workers = 2, .rounds = 30};
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) { run_sums_rank(options, rank, line); });
  }
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  Rng rng(11);
  for (int count = 0; count < 3000; ++count) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(ports[rng.below(ports.size())]);
    std::string packet = random_bytes(rng, rng.below(300));
    // Some pass the first checks: the version and the type are valid, the rest is noise.
    if (packet.size() > 56 && rng.below(2) == 0) {
      packet[0] = static_cast<char>(0x10 | rng.below(10));
      packet[1] = 0;
      const auto payload = static_cast<uint16_t>(packet.size() - 56);
      std::memcpy(&packet[2], &payload, sizeof(payload));
    }
    sendto(fd, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof(to));
  }
  close(fd);
  const auto outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK_THAT(daemon.get("/metrics"), Contains("pbox_rejected_packets_total"));
  require_serves(daemon);
}

}  // namespace pbox::test
