// A folder of files that must survive a crash. Its interface exposes the separate steps, because a
// crash can happen between any two of them. replace_file.h puts the steps into the only order that
// is safe. The simulator and tests have their own disks, which fail at any step and forget what was
// not synced.
//
// Only one thread may use a disk at a time. Every call blocks for as long as the disk takes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"

namespace pbox::storage {

// A file that is being written. Destroying it closes the file.
class OutputFile {
 public:
  virtual ~OutputFile() = default;

  // Appends `bytes` bytes. After an error the file may contain some of them.
  virtual Status write(const void* data, size_t bytes) = 0;
  // After this the contents survive a crash, but not yet the name (Disk::sync_names).
  virtual Status sync() = 0;
};

class Disk {
 public:
  virtual ~Disk() = default;

  // Returns the contents of the file; nullopt if there is no file of that name.
  virtual Result<std::optional<std::string>> read(const std::string& name) = 0;
  // Creates an empty file, or empties an existing one.
  virtual Result<std::unique_ptr<OutputFile>> create(const std::string& name) = 0;
  // Renames in one step; replaces `to` if it exists. Survives a crash only after sync_names().
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status sync_names() = 0;
  // Deletes the file, if there is one. Errors are ignored, so use it only for files that nothing
  // refers to.
  virtual void remove(const std::string& name) = 0;
};

// Opens a folder of the file system. It must exist; several programs may use it at once.
// An error names the folder.
Result<std::unique_ptr<Disk>> open_folder(const std::string& folder);

// Opens the state folder of a box ([cluster] state_directory). Creates it if it is missing and
// locks it, so that two boxes cannot share one. With an empty name the files are kept in memory
// and last as long as the returned object.
Result<std::unique_ptr<Disk>> open_state_folder(const std::string& folder);

// Returns the CRC32C of `text` as 8 hexadecimal digits. Files store it to detect damage.
std::string checksum(const std::string& text);

}  // namespace pbox::storage
