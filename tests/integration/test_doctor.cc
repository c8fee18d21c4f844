// pboxctl doctor against boxes that are healthy, absent, full, of another release, or behind bad
// paths, and against programs that are no boxes. The right check must report each fault, with the
// words that help.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "nic/socket/address.h"
#include "nic/wire/control_frame.h"
#include "tests/support/cable.h"
#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using Names = std::vector<std::string>;

const Names kBoxChecks = {"name", "control", "version", "join", "buffers",
                          "data", "mtu",     "loss",    "sums", "optimizer"};

Arguments doctor_arguments(const Arguments& more) {
  Arguments arguments = {"doctor", "-o", "json", "--seconds=1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

struct Diagnosis {
  int status = -1;
  nlohmann::json json;

  Names names() const {
    Names names;
    for (const auto& check : json.at("checks")) names.push_back(check.at("name"));
    return names;
  }
  nlohmann::json check(const std::string& name) const {
    for (const auto& check : json.at("checks")) {
      if (check.at("name") == name) return check;
    }
    FAIL("the report lacks the check " + name + " in " + json.dump());
    return {};
  }
  std::string level(const std::string& name) const { return check(name).at("level"); }
  std::string finding(const std::string& name) const { return check(name).at("finding"); }
  std::string remedy(const std::string& name) const { return check(name).at("remedy"); }
};

Diagnosis finish(Program& program) {
  Diagnosis diagnosis;
  std::string output;
  while (const auto line = program.read_line(kDeadlineMs)) output += *line + '\n';
  diagnosis.status = program.wait_exit(kDeadlineMs).value_or(-1);
  INFO(program.errors());
  diagnosis.json = nlohmann::json::parse(output);
  CHECK(diagnosis.json.at("ok") == (diagnosis.status == 0));
  for (const auto& check : diagnosis.json.at("checks")) {
    CHECK((check.at("level") == "ok") == check.at("remedy").get<std::string>().empty());
  }
  return diagnosis;
}

Diagnosis diagnose(const Arguments& arguments, const std::string& name_space = "") {
  Program program(PBOX_CTL_PATH, doctor_arguments(arguments), name_space);
  return finish(program);
}

// Requires that this check failed and that no check ran after it.
void require_fails_at(const Diagnosis& diagnosis, const std::string& name) {
  INFO(diagnosis.json.dump(2));
  CHECK(diagnosis.status == 1);
  REQUIRE(diagnosis.names().back() == name);
  CHECK(diagnosis.level(name) == "fail");
}

// A server on loopback that is not a box: it accepts connections and answers each with the same
// bytes.
class Stranger {
 public:
  explicit Stranger(std::string answer) : answer_(std::move(answer)) {
    sockaddr_storage address{};
    const auto loopback = nic::parse_endpoint("127.0.0.1", 0);
    socklen_t length = nic::to_sockaddr(*loopback, address);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(listen(fd_, 8) == 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = nic::from_sockaddr(address).port;
    thread_ = std::thread([this] { serve(); });
  }
  ~Stranger() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  std::string port() const { return std::to_string(port_); }
  std::string where() const { return "127.0.0.1:" + port(); }

 private:
  void serve() const {
    for (;;) {
      const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      char request[4096];
      // The connection that only checks whether the port is open sends nothing.
      if (recv(fd, request, sizeof(request), 0) > 0) {
        static_cast<void>(send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL));
        while (answer_.empty() && recv(fd, request, sizeof(request), 0) > 0) {
        }
      }
      close(fd);
    }
  }

  std::string answer_;
  int fd_ = -1;
  uint16_t port_ = 0;
  std::thread thread_;
};

std::string refusal(ErrorCode code, const std::string& message) {
  proto::BoxMessage failure;
  failure.mutable_failure()->set_code(static_cast<uint32_t>(code));
  failure.mutable_failure()->set_message(message);
  return *wire::frame(failure);
}

}  // namespace

TEST_CASE("a healthy box passes every check, and no job is left behind") {
  const auto listen = GENERATE("127.0.0.1", "::1");
  Daemon daemon({std::string("--box.listen=") + listen});
  const auto diagnosis = diagnose({"--to", daemon.control()});
  INFO(diagnosis.json.dump(2));
  CHECK(diagnosis.status == 0);
  CHECK(diagnosis.names() == kBoxChecks);
  CHECK_THAT(diagnosis.finding("join"), Contains("2 pipelines"));
  CHECK_THAT(diagnosis.finding("loss"), Contains("Gb/s"));
  CHECK(daemon.await_no_jobs(kDeadlineMs));
  CHECK_THAT(daemon.get("/metrics"), Contains("pbox_workers_lost_total 0"));
}

TEST_CASE("the report is also available as text, one line per check, with a verdict") {
  Daemon daemon;
  Program program(PBOX_CTL_PATH, {"doctor", "--to", daemon.control(), "--seconds", "1"});
  std::string output;
  while (const auto line = program.read_line(kDeadlineMs)) {
    CHECK(line->size() <= 100);
    output += *line + '\n';
  }
  CHECK(program.wait_exit(kDeadlineMs) == 0);
  CHECK_THAT(output, Contains("  ok    sums "));
  CHECK_THAT(output, Contains("10 checks: "));
}

TEST_CASE("chunks that are too large for small packets on this box do not hinder any check") {
  Daemon daemon({"--jobs.chunk_bytes=1048576"});
  const auto diagnosis = diagnose({"--to", daemon.control()});
  INFO(diagnosis.json.dump(2));
  CHECK(diagnosis.status == 0);
  CHECK_THAT(diagnosis.finding("join"), Contains("chunks of 1048576 B"));
}

TEST_CASE("a small receive buffer loses nothing, because credit counts what it holds") {
  Daemon daemon({"--data.receive_buffer_bytes=65536", "--data.mtu=1500", "--data.gso=off",
                 "--pipeline.count=1"});
  const auto diagnosis = diagnose({"--to", daemon.control()});
  INFO(diagnosis.json.dump(2));
  CHECK(diagnosis.status == 0);
  CHECK(diagnosis.level("loss") == "ok");
  CHECK_THAT(diagnosis.finding("loss"), Contains("were sent again (0.000 %)"));
}

TEST_CASE("if nothing listens on the control port, the remedy names the service") {
  std::string where;
  {
    Stranger gone("");
    where = gone.where();
  }
  const auto diagnosis = diagnose({"--to", where});
  require_fails_at(diagnosis, "control");
  CHECK_THAT(diagnosis.finding("control"), Contains("refused"));
  CHECK_THAT(diagnosis.remedy("control"), Contains("systemctl status pboxd"));
}

TEST_CASE("a name that does not resolve is distinguished from a box that is down") {
  require_fails_at(diagnose({"--to", "no-such-box.invalid"}), "name");
}

TEST_CASE("a box with another control protocol is reported with both versions") {
  Stranger box(refusal(ErrorCode::kVersionMismatch,
                       "this worker speaks control protocol 1, the box speaks 2"));
  const auto diagnosis = diagnose({"--to", box.where()});
  require_fails_at(diagnosis, "version");
  CHECK_THAT(diagnosis.finding("version"), Contains("protocol 1") && Contains("speaks 2"));
  CHECK_THAT(diagnosis.remedy("version"), Contains("one release"));
}

TEST_CASE("another program on the port is not taken for a box, whether it answers or is silent") {
  const auto answer = GENERATE("HTTP/1.1 400 Bad Request\r\n\r\n", "");
  Stranger stranger(answer);
  const auto diagnosis = diagnose({"--to", stranger.where()});
  require_fails_at(diagnosis, "version");
  CHECK_THAT(diagnosis.remedy("version"), Contains("ss -ltnp"));
}

TEST_CASE("a box that admits no more jobs counts as reached, and the report names the limit") {
  Daemon daemon({"--jobs.max=1"});
  AbiWorker worker({.box = daemon.control()});
  worker.tensor("only", 100);
  worker.join();
  const auto diagnosis = diagnose({"--to", daemon.control()});
  require_fails_at(diagnosis, "join");
  CHECK(diagnosis.level("version") == "ok");
  CHECK_THAT(diagnosis.finding("join"), Contains("[jobs] max = 1"));
}

TEST_CASE(
    "a firewall on one UDP port is reported with the port's number, and a narrow path as such") {
  Cable cable(1400, 9000);
  if (!cable.works()) {
    WARN("skipped: network namespaces cannot be made here (needs root and iproute2)");
    return;
  }
  Daemon daemon(Cable::box_arguments(), cable.box());
  SECTION("a path narrower than the interface loses full packets only") {
    const auto diagnosis = diagnose({"--to", daemon.control()}, cable.rack());
    require_fails_at(diagnosis, "mtu");
    CHECK(diagnosis.level("data") == "ok");
    CHECK_THAT(diagnosis.finding("mtu"), Contains("passes both ways has 1400 bytes"));
    CHECK_THAT(diagnosis.remedy("mtu"), Contains("mtu 1400"));
  }
  SECTION("both faults at once are both reported") {
    const auto granted = diagnose({"--to", daemon.control()}, cable.rack()).finding("data");
    const std::string ports = granted.substr(granted.find("UDP ") + 4);  // "40001-40002"
    const auto blocked = static_cast<uint16_t>(std::stoi(ports));
    if (!cable.block_udp(blocked)) {
      WARN("skipped: this kernel has no routing rules by port");
      return;
    }
    const auto diagnosis = diagnose({"--to", daemon.control()}, cable.rack());
    require_fails_at(diagnosis, "mtu");
    CHECK(diagnosis.level("data") == "fail");
    CHECK_THAT(diagnosis.finding("data"),
               Contains("no answer from UDP " + std::to_string(blocked) + ";"));
    CHECK_THAT(diagnosis.finding("mtu"), Contains("passes both ways has 1400 bytes"));
  }
}

TEST_CASE(
    "on the box itself the machine is checked with a temporary box, which is gone afterwards") {
  const auto diagnosis = diagnose({"--config=/dev/null", "--control.port=0", "--admin.port=0",
                                   "--data.port_first=0", "--pipeline.count=1"});
  INFO(diagnosis.json.dump(2));
  CHECK(diagnosis.status == 0);
  const Names names = diagnosis.names();
  REQUIRE(names.size() > kBoxChecks.size());
  CHECK(Names(names.end() - static_cast<long>(kBoxChecks.size()), names.end()) == kBoxChecks);
  CHECK(std::count(names.begin(), names.end(), "receive-buffer") == 1);
  const std::string started = diagnosis.finding("pboxd");
  REQUIRE_THAT(started, Contains("control at TCP "));
  const int port = std::stoi(started.substr(started.find("TCP ") + 4));
  CHECK(connect_to("127.0.0.1:" + std::to_string(port)) == -1);
}

TEST_CASE("the temporary box stands alone and leaves no files") {
  char folder[] = "/tmp/pbox-doctor-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string audit = std::string(folder) + "/audit.log";
  std::vector<std::string> settings = {"--config=/dev/null",
                                       "--control.port=0",
                                       "--admin.port=0",
                                       "--data.port_first=0",
                                       "--pipeline.count=1",
                                       "--log.audit=" + audit,
                                       "--recorder.directory=" + std::string(folder)};
  SECTION("of a cluster") {
    settings.emplace_back("--cluster.store=etcd");
    settings.emplace_back("--cluster.endpoints=127.0.0.1:1");  // nobody listens there
  }
  SECTION("of a rack") {
    settings.emplace_back("--upstream.box=127.0.0.1:1");
  }
  const auto diagnosis = diagnose(settings);
  INFO(diagnosis.json.dump(2));
  CHECK(diagnosis.level("pboxd") == "ok");
  CHECK(diagnosis.level("data") == "ok");
  CHECK(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST_CASE("if the box is already running on this machine, the running pboxd is asked") {
  Daemon daemon;
  const std::string port = daemon.control().substr(daemon.control().rfind(':') + 1);
  const auto diagnosis = diagnose({"--config=/dev/null", "--control.port=" + port});
  INFO(diagnosis.json.dump(2));
  CHECK(diagnosis.status == 0);
  CHECK_THAT(diagnosis.finding("pboxd"), Contains("is running"));
  CHECK_THAT(diagnosis.finding("control"), Contains(daemon.control()));
  CHECK(daemon.await_no_jobs(kDeadlineMs));
}

TEST_CASE("on the box, a port in use by another program prevents the temporary box from starting") {
  Stranger stranger("no box");
  const auto diagnosis =
      diagnose({"--config=/dev/null", "--control.port=" + stranger.port(), "--admin.port=0"});
  CHECK(diagnosis.status == 1);
  CHECK(diagnosis.level("ports") == "fail");
  CHECK_THAT(diagnosis.finding("ports"), Contains(stranger.port()));
  const Names names = diagnosis.names();
  CHECK(std::count(names.begin(), names.end(), "pboxd") == 0);
}

TEST_CASE("SIGINT ends the doctor soon: it leaves the job and stops a box that it started") {
  SECTION("from another machine") {
    Daemon daemon;
    Program program(PBOX_CTL_PATH,
                    {"doctor", "-o", "json", "--seconds=60", "--to", daemon.control()});
    REQUIRE(program.await_errors("exchanging", kDeadlineMs));
    program.signal(SIGINT);
    const auto diagnosis = finish(program);
    require_fails_at(diagnosis, "doctor");
    CHECK(daemon.await_no_jobs(kDeadlineMs));
    CHECK_THAT(daemon.get("/metrics"), Contains("pbox_workers_lost_total 0"));
  }
  SECTION("on the box") {
    Program program(PBOX_CTL_PATH, {"doctor", "-o", "json", "--seconds=60", "--config=/dev/null",
                                    "--control.port=0", "--admin.port=0", "--data.port_first=0"});
    REQUIRE(program.await_errors("exchanging", kDeadlineMs));
    program.signal(SIGINT);
    const auto diagnosis = finish(program);
    require_fails_at(diagnosis, "doctor");
    const std::string started = diagnosis.finding("pboxd");
    const int port = std::stoi(started.substr(started.find("TCP ") + 4));
    CHECK(connect_to("127.0.0.1:" + std::to_string(port)) == -1);
  }
}

}  // namespace pbox::test
