#include "nic/tls/key_stamp.h"

#include <sys/stat.h>

namespace pbox::tls {

KeyStamp stamp_of(const std::string& path) {
  // "" stands for the path itself, if it is a token. A folder is left out, because its status
  // changes with files of other names too.
  static constexpr std::array<const char*, 5> kFiles = {"", "/ca.pem", "/cert.pem", "/key.pem",
                                                        "/crl.pem"};
  KeyStamp stamp;
  for (size_t index = 0; index < kFiles.size(); ++index) {
    struct stat facts {};
    if (stat((path + kFiles[index]).c_str(), &facts) != 0 || S_ISDIR(facts.st_mode)) continue;
    stamp[index] = {.device = facts.st_dev,
                    .inode = facts.st_ino,
                    .bytes = static_cast<uint64_t>(facts.st_size),
                    .changed_s = facts.st_ctim.tv_sec,
                    .changed_ns = facts.st_ctim.tv_nsec};
  }
  return stamp;
}

}  // namespace pbox::tls
