#include "appliance/admin/local_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace pbox::admin {
namespace {

constexpr mode_t kSocketMode = 0660;

Error in_socket(const std::string& path, const std::string& what) {
  return {ErrorCode::kSystem, "admin.socket = " + path + ": " + what};
}

Error failed(const std::string& path, const std::string& call, int error_number) {
  return in_socket(path, call + ": " + std::strerror(error_number) +
                             "; name a path in a folder that exists and belongs to the user of "
                             "pboxd");
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  PBOX_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Descriptor stream_socket() {
  return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Returns the locked file PATH.lock. Its mode keeps other users from holding the lock.
Result<Descriptor> take_lock(const std::string& path) {
  const std::string name = path + ".lock";
  Descriptor lock(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!lock.ok()) return failed(path, "cannot open " + name, errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return failed(path, "cannot lock " + name, errno);
  return in_socket(path, "another pboxd serves it; name another path, or stop that pboxd");
}

// Removes the socket of a process that has ended. Returns an error if something else is there.
Status remove_stale(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return ok_status();
    return failed(path, "cannot look at it", errno);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return in_socket(path, "a file there is not a socket; remove it, or name another path");
  }
  const Descriptor probe = stream_socket();
  if (!probe.ok()) return failed(path, "socket", errno);
  const sockaddr_un address = address_of(path);
  const bool is_served =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN;  // its queue is full
  if (is_served) {
    return in_socket(path, "another program serves it; name another path, or stop that program");
  }
  if (errno != ECONNREFUSED) return failed(path, "cannot tell whether it is served", errno);
  if (unlink(path.c_str()) != 0) return failed(path, "cannot remove a stale socket", errno);
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<LocalSocket>> LocalSocket::listen(const std::string& path, int backlog) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return in_socket(path, "the path is longer than the " +
                               std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                               " characters of a socket; name a shorter one");
  }
  auto lock = take_lock(path);
  if (!lock) return lock.error();
  if (const Status removed = remove_stale(path); !removed) return removed.error();
  Descriptor socket = stream_socket();
  if (!socket.ok()) return failed(path, "socket", errno);
  // bind() gives the file this mode less the umask, so that nobody else can connect meanwhile.
  if (fchmod(socket.get(), kSocketMode) != 0) return failed(path, "fchmod", errno);
  const sockaddr_un address = address_of(path);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return failed(path, "cannot make the socket", errno);
  }
  std::unique_ptr<LocalSocket> made(new LocalSocket(path, std::move(*lock), std::move(socket)));
  if (const Status noted = made->note_file(); !noted) return noted.error();
  if (fchmodat(AT_FDCWD, path.c_str(), kSocketMode, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed(path, "cannot set its mode", errno);
  }
  if (::listen(made->socket_.get(), backlog) != 0) return failed(path, "listen", errno);
  return made;
}

Status LocalSocket::note_file() {
  struct stat made {};
  if (lstat(path_.c_str(), &made) != 0) return failed(path_, "cannot look at it", errno);
  device_ = made.st_dev;
  inode_ = made.st_ino;
  group_ = made.st_gid;
  return ok_status();
}

std::optional<gid_t> LocalSocket::find_own() const {
  struct stat found {};
  const bool is_own = inode_ != 0 && lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ &&
                      found.st_ino == inode_;
  return is_own ? std::optional(found.st_gid) : std::nullopt;
}

LocalSocket::~LocalSocket() {
  if (find_own()) unlink(path_.c_str());
}

gid_t LocalSocket::group() const {
  return find_own().value_or(group_);
}

int LocalSocket::duplicate() const {
  return fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0);
}

Result<PeerCredentials> peer_credentials(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return system_error("SO_PEERCRED", errno);
  }
  PeerCredentials found{.uid = peer.uid, .groups = {peer.gid}};
  std::vector<gid_t> more(64);
  bytes = static_cast<socklen_t>(more.size() * sizeof(gid_t));
  int done = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, more.data(), &bytes);
  if (done != 0 && errno == ERANGE) {  // `bytes` now says how many there are
    more.resize(bytes / sizeof(gid_t));
    done = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, more.data(), &bytes);
  }
  if (done != 0) return system_error("SO_PEERGROUPS", errno);
  more.resize(bytes / sizeof(gid_t));
  found.groups.insert(found.groups.end(), more.begin(), more.end());
  return found;
}

Principal local_principal(const PeerCredentials& peer, uid_t own_uid, gid_t group) {
  Principal client{.name = "uid " + std::to_string(peer.uid), .role = std::nullopt};
  const bool is_member =
      std::find(peer.groups.begin(), peer.groups.end(), group) != peer.groups.end();
  if (peer.uid == 0 || peer.uid == own_uid || is_member) {
    client.role = tls::Role::kOperator;
  } else {
    client.remedy = "add the user to the group of the socket, " + std::to_string(group) +
                    ", or ask as root or as uid " + std::to_string(own_uid);
  }
  return client;
}

}  // namespace pbox::admin
