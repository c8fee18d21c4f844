// Devices that are in use already: opening them fails, names the reason, and does not disturb them.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "nic/dpdk/device.h"
#include "tests/unit/nic/dpdk/cable.h"

namespace pbox::test {
namespace {

using Catch::Contains;

// Serves a memif socket with a delay, like a busy process.
class SlowServer {
 public:
  explicit SlowServer(const std::string& path) : fd_(socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(fd_, 1) == 0);
    thread_ = std::thread([this] {
      const int client = accept(fd_, nullptr, nullptr);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      greeted_ = send(client, "hello", 5, MSG_NOSIGNAL) == 5;
      close(client);
    });
  }
  ~SlowServer() { close(fd_); }

  bool greeted_its_client() {
    thread_.join();
    return greeted_;
  }

 private:
  int fd_;
  bool greeted_ = false;
  std::thread thread_;
};

std::string refusal(const std::string& device) {
  const auto opened = nic::DpdkDevice::open({.device = device, .queue_nodes = {SOCKET_ID_ANY}});
  REQUIRE_FALSE(opened);
  return opened.error().message;
}

}  // namespace

TEST_CASE("a memif socket that another process serves is refused, after its greeting") {
  start_dpdk();
  const std::string path = "/tmp/pbox-test-memif-" + std::to_string(getpid());
  SlowServer server(path);
  CHECK_THAT(refusal("net_memif0,role=server,socket-abstract=no,socket=" + path),
             Contains("another process serves") && Contains(path));
  CHECK(server.greeted_its_client());
  std::filesystem::remove(path);
}

TEST_CASE("a device that is open in this process cannot be opened again, and keeps working") {
  start_dpdk();
  auto opened = nic::DpdkDevice::open({.device = "net_null7", .queue_nodes = {SOCKET_ID_ANY}});
  REQUIRE(opened);
  CHECK_THAT(refusal("net_null7"), Contains("net_null7 is open in this process already"));
  CHECK((*opened)->link_is_up());
  opened->reset();
  CHECK(nic::DpdkDevice::open({.device = "net_null7", .queue_nodes = {SOCKET_ID_ANY}}));
}

}  // namespace pbox::test
