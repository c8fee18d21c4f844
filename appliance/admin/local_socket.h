// The UNIX socket of local operators: the file, and the rights of the peer of a connection.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "appliance/admin/rights.h"
#include "base/descriptor.h"
#include "base/result.h"

namespace pbox::admin {

// A listening socket at a path. It holds PATH.lock, which the kernel releases when the process
// ends. So a socket that a dead process has left is replaced, and the socket of a running one never
// is. A symbolic link in place of either file is an error.
class LocalSocket {
 public:
  // Only the owner and the group of the file may connect. Errors name the path and the remedy.
  static Result<std::unique_ptr<LocalSocket>> listen(const std::string& path, int backlog);
  // Removes the file, unless another one has taken its place. PATH.lock stays.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  // Returns a duplicate of the listening descriptor, or -1 with errno.
  int duplicate() const;
  // Returns the file's group, which its owner may have changed since.
  gid_t group() const;

 private:
  LocalSocket(std::string path, Descriptor lock, Descriptor socket)
      : path_(std::move(path)), lock_(std::move(lock)), socket_(std::move(socket)) {}
  Status note_file();
  // Returns the group of the file at the path; nullopt if this process has not made that file.
  std::optional<gid_t> find_own() const;

  std::string path_;
  Descriptor lock_, socket_;
  dev_t device_ = 0;  // with inode_: the file that this process has made
  ino_t inode_ = 0;
  gid_t group_ = 0;
};

// The process at the other end of a UNIX socket, as the kernel noted it when it connected.
struct PeerCredentials {
  uid_t uid = 0;
  std::vector<gid_t> groups = {};  // its group and its supplementary groups
};

Result<PeerCredentials> peer_credentials(int fd);

// Root, `own_uid` and members of `group` are operators.
Principal local_principal(const PeerCredentials& peer, uid_t own_uid, gid_t group);

}  // namespace pbox::admin
