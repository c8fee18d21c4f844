#include "appliance/storage/replace_file.h"

#include <filesystem>
#include <utility>

#include "base/check.h"

namespace pbox::storage {
namespace {

Status write_and_commit(Result<FileReplacement> replacement, const std::string& bytes) {
  if (!replacement) return replacement.error();
  if (const Status status = replacement->write(bytes.data(), bytes.size()); !status) return status;
  return replacement->commit();
}

}  // namespace

Result<FileReplacement> FileReplacement::begin(Disk& disk, std::string name) {
  PBOX_CHECK(!name.empty());
  auto file = disk.create(name + kTemporarySuffix);
  if (!file) return file.error();
  return FileReplacement(&disk, std::move(name), std::move(*file));
}

Result<FileReplacement> FileReplacement::begin(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::filesystem::path folder = whole.parent_path();
  auto disk = open_folder(folder.empty() ? "." : folder.string());
  if (!disk) return disk.error();
  auto replacement = begin(**disk, whole.filename());
  if (!replacement) return replacement.error();
  replacement->own_disk_ = std::move(*disk);
  return replacement;
}

FileReplacement::~FileReplacement() {
  if (file_ != nullptr) disk_->remove(temporary_name());
}

Status FileReplacement::write(const void* data, size_t bytes) {
  PBOX_CHECK(file_ != nullptr);
  return file_->write(data, bytes);
}

Status FileReplacement::commit() {
  PBOX_CHECK(file_ != nullptr);
  if (const Status status = file_->sync(); !status) return status;
  if (const Status status = disk_->rename(temporary_name(), name_); !status) return status;
  file_.reset();
  return disk_->sync_names();
}

Status replace_file(Disk& disk, const std::string& name, const std::string& bytes) {
  return write_and_commit(FileReplacement::begin(disk, name), bytes);
}

Status replace_file(const std::string& path, const std::string& bytes) {
  return write_and_commit(FileReplacement::begin(path), bytes);
}

Status sync_folder(const std::string& folder) {
  const auto disk = open_folder(folder);
  if (!disk) return disk.error();
  return (*disk)->sync_names();
}

}  // namespace pbox::storage
