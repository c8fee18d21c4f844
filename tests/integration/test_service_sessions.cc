// Numbers that a stranger must not guess.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "nic/wire/control_frame.h"
#include "nic/wire/control_versions.h"
#include "tests/support/daemon.h"

namespace pbox::test {
namespace {

constexpr uint32_t kDrawShift = 19;  // docs/protocol.md, "The spi"

// A control connection to a box on 127.0.0.1, without libpbox.
class RawConnection {
 public:
  explicit RawConnection(const std::string& box)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(box.substr(box.rfind(':') + 1))));
    REQUIRE(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~RawConnection() { close(fd_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  void say(const proto::WorkerMessage& message) const {
    const auto framed = wire::frame(message);
    REQUIRE(framed.ok());
    REQUIRE(send(fd_, framed->data(), framed->size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(framed->size()));
  }
  proto::BoxMessage heard() {
    for (;;) {
      const auto body = reader_.next();
      REQUIRE(body.ok());
      proto::BoxMessage message;
      if (*body) {
        REQUIRE(message.ParseFromString(**body));
        return message;
      }
      char bytes[4096];
      const ssize_t count = recv(fd_, bytes, sizeof(bytes), 0);
      REQUIRE(count > 0);
      reader_.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  int fd_;
  wire::FrameReader reader_;
};

proto::WorkerMessage join_alone(const std::string& job) {
  proto::WorkerMessage message;
  proto::Join& join = *message.mutable_join();
  join.set_protocol_version(wire::kControlProtocolVersion);
  join.set_job(job);
  join.set_world_size(1);
  join.set_path_mtu(1500);
  join.set_incarnation(7);
  auto& tensor = *join.add_tensors();
  tensor.set_name("t");
  tensor.set_elements(1000);
  return message;
}

}  // namespace

TEST_CASE("session numbers do not follow from a number that the box publishes") {
  Daemon daemon({"--pipeline.count=1"});
  const auto boxes = nlohmann::json::parse(daemon.get("/api/v1/boxes"));
  INFO(boxes.dump(2));
  Rng known(std::stoull(boxes["boxes"].at(0)["incarnation"].get<std::string>()));
  std::vector<uint32_t> drawn, guessed;
  std::vector<std::unique_ptr<RawConnection>> connections;
  for (const char* job : {"a", "b", "c"}) {
    connections.push_back(std::make_unique<RawConnection>(daemon.control()));
    connections.back()->say(join_alone(job));
    proto::BoxMessage answer;
    while (!answer.has_session()) answer = connections.back()->heard();
    drawn.push_back(answer.session().pipelines(0).spi() >> kDrawShift);
    guessed.push_back(static_cast<uint32_t>(1 + known.below((1u << (32 - kDrawShift)) - 1)));
  }
  CHECK(drawn != guessed);
  CHECK(std::count(drawn.begin(), drawn.end(), drawn[0]) < 3);
}

}  // namespace pbox::test
