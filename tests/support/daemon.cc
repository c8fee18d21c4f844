#include "tests/support/daemon.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace pbox::test {
namespace {

// Returns the word after `key` in "pboxd ready control=HOST:PORT admin=HOST:PORT".
std::string value_of(const std::string& line, const std::string& key) {
  const size_t start = line.find(key);
  if (start == std::string::npos) return "";
  const size_t begin = start + key.size();
  return line.substr(begin, line.find(' ', begin) - begin);
}

}  // namespace

const char* daemon_path() {
  return PBOX_DAEMON_PATH;
}

Arguments daemon_arguments(const Arguments& more) {
  // Whether the box moves chunks to a pipeline that finishes sooner depends on how busy the machine
  // is, and such a move counts as a recovery.
  Arguments arguments = {"--control.port=0", "--admin.port=0", "--data.port_first=0",
                         "--cluster.state_directory=none", "--pipeline.rebalance=false"};
  const auto names = [&](const std::string& key) {
    for (const auto& argument : more) {
      if (argument.rfind(key, 0) == 0) return true;
    }
    return false;
  };
  std::erase_if(arguments, [&](const std::string& argument) {
    return names(argument.substr(0, argument.find('=') + 1));
  });
  if (!names("--pipeline.count=")) arguments.push_back("--pipeline.count=2");
  if (!names("--config")) arguments.push_back("--config=/dev/null");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Daemon::Daemon(const Arguments& arguments, const std::string& name_space)
    : program_(daemon_path(), daemon_arguments(arguments), name_space) {
  const auto line = program_.read_line(kDeadlineMs);
  control_ = line ? value_of(*line, "control=") : "";
  admin_ = line ? value_of(*line, "admin=") : "";
  if (control_.empty()) throw std::runtime_error("pboxd did not start: " + program_.errors());
}

int connect_to(const std::string& where) {
  const size_t colon = where.rfind(':');
  std::string host = where.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), where.substr(colon + 1).c_str(), &hints, &found) != 0) return -1;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = connect(fd, found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  if (connected) return fd;
  close(fd);
  return -1;
}

std::string Daemon::get(const std::string& path) const {
  return ask("GET " + path, "\r\n");
}

std::string Daemon::post(const std::string& path, const std::string& json) const {
  return ask("POST " + path, "Content-Type: application/json\r\nContent-Length: " +
                                 std::to_string(json.size()) + "\r\n\r\n" + json);
}

std::string Daemon::ask(const std::string& what, const std::string& rest) const {
  const int fd = connect_to(admin_);
  if (fd < 0) throw std::runtime_error("cannot reach the admin server at " + admin_);
  const std::string request =
      what + " HTTP/1.1\r\nHost: " + admin_ + "\r\nConnection: close\r\n" + rest;
  std::string answer;
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char buffer[4096];
    for (ssize_t bytes = 0; (bytes = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(bytes));
    }
  }
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  if (body == std::string::npos) throw std::runtime_error("no answer to " + what);
  return answer.substr(body + 4);
}

std::vector<uint16_t> Daemon::data_ports() const {
  std::vector<uint16_t> ports;
  const auto box = nlohmann::json::parse(get("/api/v1/box"));
  for (const auto& pipeline : box.at("pipelines")) {
    ports.push_back(pipeline["udp_port"].get<uint16_t>());
  }
  return ports;
}

uint64_t Daemon::metric(const std::string& name, const std::string& label) const {
  std::istringstream lines(get("/metrics"));
  double sum = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string series = line.substr(0, line.rfind(' '));
    if (series.substr(0, series.find('{')) != name) continue;
    if (series.find(label) != std::string::npos) sum += std::stod(line.substr(series.size()));
  }
  return static_cast<uint64_t>(sum);
}

bool Daemon::await_no_jobs(int timeout_ms) const {
  for (int waited_ms = 0;; waited_ms += 10) {
    if (nlohmann::json::parse(get("/api/v1/jobs"))["jobs"].empty()) return true;
    if (waited_ms >= timeout_ms) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

uint64_t Daemon::resident_bytes() const {
  std::ifstream status("/proc/" + std::to_string(program_.pid()) + "/status");
  uint64_t resident_kib = 0;
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if ((word == "VmRSS:" || word == "HugetlbPages:") && status >> kib) resident_kib += kib;
  }
  if (resident_kib == 0) throw std::runtime_error("no VmRSS in /proc: the daemon has ended");
  return resident_kib << 10;
}

Output ask(const Daemon& daemon, const std::string& pboxctl, Arguments words) {
  words.insert(words.end(), {"--admin", daemon.admin()});
  return run(pboxctl, words);
}

Output run(const std::string& path, const Arguments& words) {
  Program program(path, words);
  Output output;
  while (const auto line = program.read_line(kDeadlineMs)) output.text += *line + "\n";
  output.status = program.wait_exit(kDeadlineMs).value_or(-1);
  output.errors = program.errors();
  return output;
}

}  // namespace pbox::test
