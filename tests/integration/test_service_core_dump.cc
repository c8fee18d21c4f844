// A box with keys leaves none of them in a core dump. The test is a rank of the box's job, so it
// knows the secrets that both ends of a session derive.
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "nic/crypto/session_keys.h"
#include "nic/tls/pem.h"
#include "tests/support/daemon.h"
#include "tests/support/key_folder.h"
#include "tests/support/packet_bytes.h"
#include "tests/support/secure_peer.h"

namespace pbox::test {
namespace {

constexpr char kJob[] = "acme/run-1";
constexpr char kGcore[] = "/usr/bin/gcore";

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Secret {
  std::string name;
  std::string bytes;
};

// The private key as a number, in both byte orders, and as in its file.
void add_private_key(const std::string& folder, std::vector<Secret>& secrets) {
  const std::string pem = text_of(folder + "/key.pem");
  const auto key = tls::parse_private_key(pem);
  REQUIRE(key != nullptr);
  BIGNUM* number = nullptr;
  REQUIRE(EVP_PKEY_get_bn_param(key.get(), OSSL_PKEY_PARAM_PRIV_KEY, &number) == 1);
  std::string bytes(32, '\0');
  REQUIRE(BN_bn2binpad(number, reinterpret_cast<unsigned char*>(bytes.data()), 32) == 32);
  BN_clear_free(number);
  secrets.push_back({"private key", bytes});
  secrets.push_back({"private key, reversed", {bytes.rbegin(), bytes.rend()}});
  secrets.push_back({"key.pem", pem.substr(pem.find('\n') + 1, 64)});
}

// All secrets of a session, from what the control connection exports for it.
void add_session_keys(const SecurePeer& peer, const proto::Session& session,
                      std::vector<Secret>& secrets) {
  const auto suite = static_cast<seal::Suite>(session.suite());
  const std::string context = seal::exporter_context({.box = session.box(),
                                                      .job = kJob,
                                                      .epoch = session.epoch(),
                                                      .incarnation = 7,
                                                      .suite = suite});
  crypto::TrafficSecret exported;
  peer.tls().export_secret(std::as_bytes(std::span(context)), exported.bytes);
  secrets.push_back({"exported secret", as_text(exported.bytes)});
  for (const auto direction : {crypto::Direction::kToBox, crypto::Direction::kToWorker}) {
    crypto::TrafficSecret secret;
    crypto::Keys keys;
    crypto::derive_traffic_secret(exported, 0, direction, session.pipelines(0).spi(), secret);
    crypto::derive_keys(secret, suite, keys);
    const std::string to = direction == crypto::Direction::kToBox ? " to the box" : " to the rank";
    secrets.push_back({"traffic secret" + to, as_text(secret.bytes)});
    secrets.push_back({"key" + to, as_text(keys.key.bytes)});
    secrets.push_back({"IV" + to, as_text(keys.iv.bytes)});
  }
}

// Pushes one round of the job's tensor, and requires the authentic result.
void exchange(const SecurePeer& peer, const proto::Session& session) {
  seal::SessionSeal seal = make_seal(peer, session, kJob);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in box{};
  box.sin_family = AF_INET;
  box.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  box.sin_port = htons(static_cast<uint16_t>(session.pipelines(0).udp_port()));
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&box), sizeof(box)) == 0);
  const timeval limit{.tv_sec = kDeadlineMs / 1000, .tv_usec = 0};
  REQUIRE(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
  const std::vector<float> values(1000, 1.0f);
  const size_t bytes = values.size() * sizeof(float);
  std::vector<std::byte> room(limits::kFragmentBytesMax);
  const auto fragments =
      static_cast<uint16_t>((bytes + session.fragment_bytes() - 1) / session.fragment_bytes());
  for (uint16_t fragment = 0; fragment < fragments; ++fragment) {
    const size_t offset = size_t{fragment} * session.fragment_bytes();
    nic::TxPacket packet;
    packet.header.set_type(wire::PacketType::kPush);
    packet.header.payload_bytes =
        static_cast<uint16_t>(std::min<size_t>(bytes - offset, session.fragment_bytes()));
    packet.header.spi = session.pipelines(0).spi();
    packet.header.epoch = session.epoch();
    packet.header.fragment = fragment;
    packet.header.generation = static_cast<uint16_t>(session.generation());
    packet.payload = reinterpret_cast<const std::byte*>(values.data()) + offset;
    seal.seal({}, packet, room.data());
    const auto sent = packet_bytes(packet);
    REQUIRE(send(fd, sent.data(), sent.size(), 0) == static_cast<ssize_t>(sent.size()));
  }
  std::vector<std::byte> received(limits::kPacketOverheadBytes + limits::kFragmentBytesMax);
  const ssize_t count = recv(fd, received.data(), received.size(), 0);
  REQUIRE(count > 0);
  wire::Parsed parsed;
  REQUIRE(wire::parse(received.data(), static_cast<uint32_t>(count), parsed) ==
          wire::Reject::kNone);
  CHECK(seal.open({}, parsed, room.data()));
  CHECK(parsed.header.type() == wire::PacketType::kResult);
  close(fd);
}

class KeyedJob {
 public:
  explicit KeyedJob(const std::string& encrypts)
      : signer_(authority()),
        box_(signer_, "pbox://rack/box/a"),
        keys_(signer_, "pbox://rack/tenant/acme/job/*/rank/*"),
        daemon({"--box.name=a", "--security.keys=" + box_.path(), "--pipeline.count=1",
                "--security.encrypt=" + encrypts}),
        peer_(daemon.control(), *keys_.load()) {
    peer_.say(join_of(kJob));
    auto answer = peer_.heard();
    while (answer && !answer->has_session()) answer = peer_.heard();
    REQUIRE(answer);
    exchange(peer_, answer->session());
    add_private_key(box_.path(), secrets);
    add_session_keys(peer_, answer->session(), secrets);
  }

 private:
  tls::KeyPair signer_;
  KeyFolder box_, keys_;

 public:
  Daemon daemon;
  std::vector<Secret> secrets;

 private:
  SecurePeer peer_;
};

// Ends the daemon by SIGABRT. Returns whether the kernel has written a core dump.
bool dumps_core(Daemon& daemon) {
  daemon.program().signal(SIGABRT);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(daemon.program().pid()), &info, WEXITED | WNOWAIT) == 0);
  CHECK(info.si_status == SIGABRT);
  return info.si_code == CLD_DUMPED;
}

// Core dumps of started programs end up here, if the kernel writes them to the working folder.
class CoreFolder {
 public:
  CoreFolder() {
    REQUIRE(getrlimit(RLIMIT_CORE, &before_) == 0);
    const rlimit limit{before_.rlim_max, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_CORE, &limit) == 0);
    std::filesystem::current_path(folder_.path());
  }
  ~CoreFolder() {
    std::filesystem::current_path(path_before_);
    setrlimit(RLIMIT_CORE, &before_);
  }
  CoreFolder(const CoreFolder&) = delete;
  CoreFolder& operator=(const CoreFolder&) = delete;
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_before_ = std::filesystem::current_path();
  rlimit before_{};
};

}  // namespace

TEST_CASE("a core dump that root forces holds no key of a box with a job") {
  if (access(kGcore, X_OK) != 0) {
    WARN("skipped: gcore is not here (package gdb)");
    return;
  }
  const std::string encrypts = GENERATE("false", "true");
  const KeyedJob job(encrypts);
  const TemporaryFolder folder;
  const std::string core = folder.path() + "/core";
  const std::string pid = std::to_string(job.daemon.program().pid());
  const Output made = run(kGcore, {"-o", core, pid});
  INFO(made.text << made.errors);
  REQUIRE(made.status == 0);
  const std::string dump = text_of(core + "." + pid);
  REQUIRE(dump.substr(1, 3) == "ELF");
  for (const Secret& secret : job.secrets) {
    INFO(secret.name);
    CHECK(dump.find(secret.bytes) == std::string::npos);
  }
}

TEST_CASE("a box with keys that crashes leaves no core dump, as one without keys does") {
  const CoreFolder here;
  Daemon open({"--pipeline.count=1"});
  if (!dumps_core(open)) {
    WARN("skipped: this machine writes no core dumps");
    return;
  }
  KeyedJob job("false");
  CHECK_FALSE(dumps_core(job.daemon));
}

}  // namespace pbox::test
