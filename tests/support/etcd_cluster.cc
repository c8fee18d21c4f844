#include "tests/support/etcd_cluster.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <thread>

namespace pbox::test {
namespace {

// Returns the first port of the range from which the kernel chooses ports itself, as it does for
// every outgoing connection.
uint16_t first_ephemeral_port() {
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  uint16_t first = 0;
  if (!(range >> first) || first < 2'048) throw std::runtime_error("no ip_local_port_range");
  return first;
}

// A port below that range, so that the kernel gives it to no other socket while its member is down.
// These sockets stay open together while ports are chosen, so that no port is chosen twice.
class FreePort {
 public:
  FreePort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const uint16_t end = first_ephemeral_port();
    std::random_device draw;
    for (int attempts = 1'000; number_ == 0; --attempts) {
      if (attempts == 0) throw std::runtime_error("no free port");
      const uint16_t candidate =
          std::uniform_int_distribution<uint16_t>(end / 2, static_cast<uint16_t>(end - 1))(draw);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(candidate);
      if (bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
        number_ = candidate;
      }
    }
  }
  ~FreePort() { close(fd_); }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;
  uint16_t number() const { return number_; }

 private:
  int fd_;
  uint16_t number_ = 0;
};

std::string url(bool tls, uint16_t port) {
  return (tls ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(port);
}

std::string name_of(size_t member) {
  return std::string("m").append(std::to_string(member));
}

// Makes a certificate authority, a certificate from it for members and boxes, and a second
// authority that has signed nothing.
void make_certificates(const std::string& folder) {
  const auto authority = [&](const std::string& name) {
    must_run({"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
              "-nodes", "-days", "2", "-subj", "/CN=" + name, "-keyout",
              folder + "/" + name + ".key", "-out", folder + "/" + name + ".pem"});
  };
  authority("ca");
  authority("other-ca");
  must_run({"openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", "/CN=box", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
            folder + "/box.key", "-out", folder + "/box.csr"});
  must_run({"openssl", "x509", "-req", "-in", folder + "/box.csr", "-days", "2", "-CA",
            folder + "/ca.pem", "-CAkey", folder + "/ca.key", "-CAcreateserial", "-copy_extensions",
            "copyall", "-out", folder + "/box.pem"});
}

std::string base64(const std::string& text) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string encoded;
  for (size_t at = 0; at < text.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t index = at; index < at + 3; ++index) {
      bits = bits << 8 | (index < text.size() ? static_cast<uint8_t>(text[index]) : 0);
    }
    for (size_t digit = 0; digit < 4; ++digit) {
      encoded += digit <= text.size() - at ? kDigits[bits >> (18 - 6 * digit) & 63] : '=';
    }
  }
  return encoded;
}

}  // namespace

std::string etcd_is_impossible() {
  if (access(PBOX_ETCD_PATH, X_OK) == 0) return "";
  return "no etcd here; tools/test unpacks Debian's package etcd-server for it";
}

EtcdCluster::EtcdCluster(size_t member_count, bool tls, Arguments flags)
    : tls_(tls), flags_(std::move(flags)), members_(member_count) {
  folder_ = std::filesystem::temp_directory_path() / "pbox-etcd-XXXXXX";
  if (mkdtemp(folder_.data()) == nullptr)
    throw std::runtime_error("cannot make a folder from the pattern " + folder_);
  if (tls_) make_certificates(folder_);
  {
    const std::vector<FreePort> ports(2 * member_count);
    for (size_t index = 0; index < member_count; ++index) {
      members_[index].client_port = ports[2 * index].number();
      members_[index].peer_port = ports[2 * index + 1].number();
    }
  }
  for (size_t index = 0; index < member_count; ++index) start(index);
  await_answer();
}

EtcdCluster::~EtcdCluster() {
  members_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> endpoints;
  for (const Member& member : members_) {
    endpoints.push_back("127.0.0.1:" + std::to_string(member.client_port));
  }
  return endpoints;
}

void EtcdCluster::start(size_t member) {
  std::string cluster;
  for (size_t index = 0; index < size(); ++index) {
    cluster += name_of(index) + "=" + url(false, members_[index].peer_port) + ",";
  }
  cluster.pop_back();
  const std::string name = name_of(member);
  const std::string client_url = url(tls_, members_[member].client_port);
  const std::string peer_url = url(false, members_[member].peer_port);
  Arguments arguments = {"--name=" + name,
                         "--data-dir=" + folder_ + "/" + name,
                         "--listen-client-urls=" + client_url,
                         "--advertise-client-urls=" + client_url,
                         "--listen-peer-urls=" + peer_url,
                         "--initial-advertise-peer-urls=" + peer_url,
                         "--initial-cluster=" + cluster,
                         "--log-level=error",
                         "--logger=zap"};
  arguments.insert(arguments.end(), flags_.begin(), flags_.end());
  if (tls_) {
    for (const char* part : {"--cert-file=@/box.pem", "--key-file=@/box.key",
                             "--trusted-ca-file=@/ca.pem", "--client-cert-auth=true"}) {
      std::string argument = part;
      const size_t at = argument.find('@');
      if (at != std::string::npos) argument.replace(at, 1, folder_);
      arguments.push_back(argument);
    }
  }
  members_[member].program = std::make_unique<Program>(PBOX_ETCD_PATH, arguments);
}

std::string EtcdCluster::post(size_t member, const std::string& path,
                              const std::string& json) const {
  Arguments arguments = {"-sSf", "-m", "2", "-w", "\\n", "-d", json};
  if (tls_) {
    arguments.insert(arguments.end(), {"--cacert", folder_ + "/ca.pem", "--cert",
                                       folder_ + "/box.pem", "--key", folder_ + "/box.key"});
  }
  arguments.push_back(url(tls_, members_[member].client_port) + path);
  Program curl("curl", arguments);
  return curl.read_line(kDeadlineMs).value_or("");
}

void EtcdCluster::await_answer() const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kDeadlineMs);
  for (size_t index = 0; index < size();) {
    if (!post(index, "/v3/kv/range", R"({"key":"YQ=="})").empty()) {
      ++index;
    } else if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error("etcd did not start: " + members_[index].program->errors());
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
}

nlohmann::json EtcdCluster::range(const std::string& key) const {
  constexpr bool kThrows = false;
  const nlohmann::json question = {{"key", base64(key)}};
  auto answer = nlohmann::json::parse(post(0, "/v3/kv/range", question.dump()), nullptr, kThrows);
  if (!answer.is_object()) throw std::runtime_error("etcd does not answer");
  return answer;
}

int64_t EtcdCluster::revision() const {
  return std::stoll(range("none").at("header").at("revision").get<std::string>());
}

int64_t EtcdCluster::version(const std::string& key) const {
  const nlohmann::json found = range(key);
  if (!found.contains("kvs")) return 0;
  return std::stoll(found["kvs"][0].at("version").get<std::string>());
}

void EtcdCluster::free_space() const {
  constexpr bool kThrows = false;
  const auto ask = [this](const std::string& path, const nlohmann::json& question) {
    auto answer = nlohmann::json::parse(post(0, path, question.dump()), nullptr, kThrows);
    if (!answer.is_object()) throw std::runtime_error("no answer to " + path);
    return answer;
  };
  ask("/v3/kv/compaction", {{"revision", std::to_string(revision())}, {"physical", true}});
  ask("/v3/maintenance/defragment", nlohmann::json::object());
  const auto raised = ask("/v3/maintenance/alarm", {{"action", "GET"}, {"alarm", "NONE"}});
  if (!raised.contains("alarms")) return;
  for (nlohmann::json alarm : raised["alarms"]) {
    alarm["action"] = "DEACTIVATE";
    ask("/v3/maintenance/alarm", alarm);
  }
}

size_t EtcdCluster::leader() const {
  const nlohmann::json::json_pointer member("/header/member_id");
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kDeadlineMs);
  while (std::chrono::steady_clock::now() < end) {
    for (size_t index = 0; index < size(); ++index) {
      if (!members_[index].program) continue;
      const auto status =
          nlohmann::json::parse(post(index, "/v3/maintenance/status", "{}"), nullptr, false);
      if (status.is_object() && status.value("leader", "") == status.value(member, "none")) {
        return index;
      }
    }
  }
  throw std::runtime_error("no member of etcd leads");
}

}  // namespace pbox::test
