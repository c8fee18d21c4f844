// Replaces a file durably: the new contents are written under a temporary name (NAME.new) and
// synced, the file is renamed, and the folder is synced. After a crash at any moment the file has
// either its old contents or its new ones, whole. A temporary file that a crash leaves behind is
// overwritten by the next replacement of the same file.
//
// Only one thread may use a replacement at a time. Calls block for as long as the disk takes.
#pragma once

#include <memory>
#include <string>

#include "appliance/storage/disk.h"

namespace pbox::storage {

// Replaces a file step by step, for contents that are too large to be held in memory.
class FileReplacement {
 public:
  static constexpr char kTemporarySuffix[] = ".new";

  // `disk` must outlive the replacement.
  static Result<FileReplacement> begin(Disk& disk, std::string name);
  // Begins to replace a file of the file system, whose folder must exist.
  static Result<FileReplacement> begin(const std::string& path);
  FileReplacement(FileReplacement&&) = default;
  FileReplacement& operator=(FileReplacement&&) = delete;
  // Deletes the temporary file unless commit() has succeeded.
  ~FileReplacement();

  Status write(const void* data, size_t bytes);
  // Must be called once, last. The file is durable under its name when this returns ok. After an
  // error the file has its old or its new contents.
  Status commit();

 private:
  FileReplacement(Disk* disk, std::string name, std::unique_ptr<OutputFile> file)
      : disk_(disk), name_(std::move(name)), file_(std::move(file)) {}
  std::string temporary_name() const { return name_ + kTemporarySuffix; }

  std::unique_ptr<Disk> own_disk_;  // made by begin(path)
  Disk* disk_;
  std::string name_;
  std::unique_ptr<OutputFile> file_;  // null once committed or moved from
};

Status replace_file(Disk& disk, const std::string& name, const std::string& bytes);
Status replace_file(const std::string& path, const std::string& bytes);

// Makes the creation, renaming and deletion of files in the folder survive a crash.
Status sync_folder(const std::string& folder);

}  // namespace pbox::storage
