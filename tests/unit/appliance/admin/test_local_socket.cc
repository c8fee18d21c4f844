#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "appliance/admin/local_socket.h"
#include "tests/support/key_folder.h"

namespace pbox::admin {
namespace {

using Catch::Contains;
using test::TemporaryFolder;

std::string error_of(const std::string& path) {
  const auto socket = LocalSocket::listen(path, 4);
  return socket ? "" : socket.error().message;
}

// A socket that a program other than pboxd has made.
class ForeignSocket {
 public:
  explicit ForeignSocket(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(fd_, 4) == 0);
  }
  ~ForeignSocket() { close(fd_); }
  ForeignSocket(const ForeignSocket&) = delete;
  ForeignSocket& operator=(const ForeignSocket&) = delete;

 private:
  int fd_;
};

TEST_CASE("the socket is for its owner and group, whatever the umask, and goes with the server") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/admin.sock";
  for (const mode_t mask : {mode_t{0}, mode_t{022}, mode_t{077}}) {
    const mode_t former = umask(mask);
    auto made = LocalSocket::listen(path, 4);
    umask(former);
    REQUIRE(made.ok());
    struct stat found {};
    REQUIRE(lstat(path.c_str(), &found) == 0);
    CHECK(S_ISSOCK(found.st_mode));
    CHECK((found.st_mode & 07777) == 0660);
    CHECK((*made)->group() == found.st_gid);
    REQUIRE(stat((path + ".lock").c_str(), &found) == 0);
    CHECK((found.st_mode & 0777) == (0600 & ~mask));
    made->reset();
    CHECK_FALSE(std::filesystem::exists(path));
  }
}

TEST_CASE("a socket in use is not displaced, and one that a dead process has left is replaced") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/admin.sock";
  {
    const auto first = LocalSocket::listen(path, 4);
    REQUIRE(first.ok());
    CHECK_THAT(error_of(path), Contains(path) && Contains("another pboxd serves it"));
    CHECK(std::filesystem::exists(path));
  }
  {
    const ForeignSocket foreign(path);
    CHECK_THAT(error_of(path), Contains("another program serves it"));
    CHECK(std::filesystem::exists(path));
  }
  REQUIRE(std::filesystem::exists(path));  // the foreign program has not removed it
  const auto next = LocalSocket::listen(path, 4);
  REQUIRE(next.ok());
}

TEST_CASE("nothing but a stale socket is removed, and no symbolic link is followed") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/admin.sock", target = folder.path() + "/target";
  folder.write("admin.sock", "a file");
  CHECK_THAT(error_of(path), Contains("not a socket"));
  CHECK(std::filesystem::file_size(path) == 6);
  std::filesystem::remove(path);

  std::filesystem::create_symlink(target, path);
  CHECK_THAT(error_of(path), Contains("not a socket"));
  CHECK(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);

  std::filesystem::remove(path + ".lock");
  std::filesystem::create_symlink(target, path + ".lock");
  CHECK_THAT(error_of(path), Contains("cannot open " + path + ".lock"));
  CHECK_FALSE(std::filesystem::exists(target));

  CHECK_THAT(error_of(folder.path() + "/none/admin.sock"), Contains("a folder that exists"));
  CHECK_THAT(error_of("/" + std::string(200, 'x')), Contains("107 characters"));
}

TEST_CASE("a file that has taken the socket's place stays") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/admin.sock";
  auto made = LocalSocket::listen(path, 4);
  REQUIRE(made.ok());
  std::filesystem::remove(path);
  folder.write("admin.sock", "of somebody else");
  made->reset();
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("root, the server's own user and the socket's group are operators, others nothing") {
  const auto role = [](uid_t uid, std::vector<gid_t> groups) {
    return local_principal({.uid = uid, .groups = std::move(groups)}, 990, 50).role;
  };
  CHECK(role(0, {0}) == tls::Role::kOperator);
  CHECK(role(990, {990}) == tls::Role::kOperator);
  CHECK(role(1000, {1000, 20, 50}) == tls::Role::kOperator);
  CHECK_FALSE(role(1000, {1000, 20}));
  CHECK_FALSE(role(50, {990, 0}));
  const Principal stranger = local_principal({.uid = 1000, .groups = {1000}}, 990, 50);
  CHECK(stranger.name == "uid 1000");
  CHECK_THAT(stranger.remedy, Contains("group of the socket, 50") && Contains("uid 990"));
}

TEST_CASE("the kernel says which user and groups are at the other end") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const auto peer = peer_credentials(ends[0]);
  REQUIRE(peer.ok());
  CHECK(peer->uid == geteuid());
  CHECK(peer->groups.at(0) == getegid());
  std::vector<gid_t> own(static_cast<size_t>(getgroups(0, nullptr)));
  REQUIRE(getgroups(static_cast<int>(own.size()), own.data()) == static_cast<int>(own.size()));
  CHECK(std::vector<gid_t>(peer->groups.begin() + 1, peer->groups.end()) == own);
  for (const int end : ends) close(end);
  CHECK_FALSE(peer_credentials(ends[0]));
}

}  // namespace
}  // namespace pbox::admin
