// Where what must outlive the box is kept: a folder of small files, in the steps in which a crash
// can come between. A simulator has its own, which fails and forgets at any of them. Control
// thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"

namespace pbox::appliance {

class Disk {
 public:
  virtual ~Disk() = default;

  // The whole file; nothing if there is none of that name.
  virtual Result<std::optional<std::string>> read(const std::string& name) = 0;
  // Makes or replaces the file. What is in it survives a crash only once it is synced.
  virtual Status write(const std::string& name, const std::string& bytes) = 0;
  virtual Status sync(const std::string& name) = 0;
  // Replaces `to` in one step. Survives a crash only once names are synced.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status sync_names() = 0;
};

// A folder of the file system, which is made if it is missing, and locked: two boxes cannot share
// one. An empty name: memory, which lasts as long as the box.
Result<std::unique_ptr<Disk>> open_disk(const std::string& folder);

// A file is replaced whole or not at all, whatever happens; durable when this returns ok. After an
// error either content may be found later.
Status replace_file(Disk& disk, const std::string& name, const std::string& bytes);

// CRC32C as 8 hexadecimal digits: what a file keeps beside its text, to know it again.
std::string checksum(const std::string& text);

}  // namespace pbox::appliance
