// Keys of a box and of its workers, in a temporary folder that is removed with the object.
#pragma once

#include <string>
#include <vector>

#include "nic/seal/session_keys.h"

namespace pbox::perf {

class KeyFolders {
 public:
  // Throws std::runtime_error if the folder cannot be written.
  KeyFolders();
  ~KeyFolders();
  KeyFolders(const KeyFolders&) = delete;
  KeyFolders& operator=(const KeyFolders&) = delete;

  // Returns flags for a pboxd whose packets this suite protects. They also override the flags by
  // which Rack::start_box() permits a box without keys.
  std::vector<std::string> box_flags(seal::Suite suite) const;
  // Returns the folder of keys for workers of jobs perf/NAME; empty for kNone.
  std::string workers(seal::Suite suite) const;
  std::string box() const { return path_ + "/box"; }

 private:
  std::string path_;
};

}  // namespace pbox::perf
