#include "nic/tls/folder_stamp.h"

#include <sys/stat.h>

namespace pbox::tls {

FolderStamp stamp_of(const std::string& folder) {
  static constexpr std::array<const char*, 4> kFiles = {"/ca.pem", "/cert.pem", "/key.pem",
                                                        "/crl.pem"};
  FolderStamp stamp;
  for (size_t index = 0; index < kFiles.size(); ++index) {
    struct stat facts {};
    if (stat((folder + kFiles[index]).c_str(), &facts) != 0) continue;
    stamp[index] = {.device = facts.st_dev,
                    .inode = facts.st_ino,
                    .bytes = static_cast<uint64_t>(facts.st_size),
                    .changed_s = facts.st_ctim.tv_sec,
                    .changed_ns = facts.st_ctim.tv_nsec};
  }
  return stamp;
}

}  // namespace pbox::tls
