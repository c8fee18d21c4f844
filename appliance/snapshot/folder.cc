#include "appliance/snapshot/folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "appliance/storage/input_file.h"
#include "appliance/storage/replace_file.h"
#include "base/check.h"
#include "nic/wire/crc32c.h"

namespace pbox::snapshot {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kKept = 2;
// An attempt whose files have not changed for this long has been abandoned: its box is lost.
constexpr std::chrono::minutes kAbandonedAfter{10};
constexpr char kManifestName[] = "manifest.json";
constexpr uint32_t kManifestFormat = 1;

std::string to_text(const Manifest& manifest) {
  Json parts = Json::array(), ranks = Json::array();
  for (const uint64_t rank : manifest.ranks) ranks.push_back(std::to_string(rank));
  for (const PartFile& part : manifest.parts) {
    parts.push_back(
        {{"box", part.box}, {"file", part.name}, {"bytes", part.bytes}, {"crc32c", part.crc32c}});
  }
  return Json{{"format", kManifestFormat}, {"job", manifest.job},
              {"number", manifest.number}, {"steps", manifest.steps},
              {"tenant", manifest.tenant}, {"taken_at", manifest.taken_at},
              {"ranks", std::move(ranks)}, {"parts", std::move(parts)}}
             .dump(1) +
         "\n";
}

Manifest manifest_from_text(const std::string& text) {
  const Json json = Json::parse(text);
  Manifest manifest{.job = json.at("job"),
                    .number = json.at("number"),
                    .steps = json.at("steps"),
                    .tenant = json.value("tenant", ""),  // older releases wrote none
                    .taken_at = json.at("taken_at"),
                    .ranks = {},
                    .parts = {}};
  for (const Json& rank : json.at("ranks")) {
    manifest.ranks.push_back(std::stoull(rank.get<std::string>()));
  }
  for (const Json& part : json.at("parts")) {
    manifest.parts.push_back(
        {part.at("box"), part.at("file"), part.at("bytes"), part.at("crc32c")});
  }
  return manifest;
}

std::optional<uint64_t> to_number(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && number > 0;
  return is_number ? std::optional(number) : std::nullopt;
}

// Returns the names in a folder; none if it does not exist. The iterator's ++ would throw if the
// disk fails, and this thread catches nothing.
Result<std::vector<std::string>> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename());
  }
  if (!error || error == std::errc::no_such_file_or_directory) return names;
  return Error{ErrorCode::kSystem, "cannot read the folder " + folder + ": " + error.message()};
}

// Returns the numbers of all snapshots in the job's folder, complete or not, in ascending order.
Result<std::vector<uint64_t>> numbers(const std::string& folder) {
  const auto names = names_in(folder);
  if (!names) return names.error();
  std::vector<uint64_t> found;
  for (const std::string& name : *names) {
    if (const auto number = to_number(name)) found.push_back(*number);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string manifest_path(const std::string& directory, const std::string& job, uint64_t number) {
  return number_folder(directory, job, number) + "/" + kManifestName;
}

// Returns nullopt if there is no manifest: the snapshot was never completed. A manifest that cannot
// be opened for another reason (permissions, too many open files) is an error.
Result<std::optional<Manifest>> read_manifest(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  if (!file) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return std::optional<Manifest>();
    return system_error("cannot read " + path, error);
  }
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return std::optional(manifest_from_text(text.str()));
  } catch (const std::exception& error) {
    return Error{ErrorCode::kMismatch, path + " is damaged: " + error.what()};
  }
}

bool is_whole(const std::optional<Manifest>& manifest, const std::string& job, uint64_t number) {
  return manifest && manifest->job == job && manifest->number == number;
}

// A snapshot whose manifest cannot be read or is damaged is kept, in addition to the last two: it
// may be the one that an operator wants to repair.
void remove_old(const std::string& directory, const Manifest& newest) {
  const auto all = numbers(job_folder(directory, newest.job));
  if (!all) return;
  size_t kept = 0;
  for (auto at = all->rbegin(); at != all->rend(); ++at) {
    const std::string path = manifest_path(directory, newest.job, *at);
    const auto manifest = read_manifest(path);
    if (!manifest) continue;
    if (kept < kKept && is_whole(*manifest, newest.job, *at)) {
      ++kept;
      continue;
    }
    if (*at > newest.number) continue;
    // The manifest goes first, so that a half-removed snapshot does not count as one.
    std::error_code ignored;
    fs::remove(path, ignored);
    fs::remove_all(number_folder(directory, newest.job, *at), ignored);
  }
}

// Returns when the folder or a file in it was last written; the end of time if that is unknown.
fs::file_time_type last_change(const std::string& folder) {
  const auto names = names_in(folder);
  if (!names) return fs::file_time_type::max();
  std::error_code error;
  fs::file_time_type last = fs::last_write_time(folder, error);
  for (const std::string& name : *names) {
    std::error_code gone;  // a file may be renamed or removed meanwhile
    const auto time = fs::last_write_time(folder + "/" + name, gone);
    last = std::max(last, gone ? fs::file_time_type::max() : time);
  }
  return error ? fs::file_time_type::max() : last;
}

// Discards attempts that no box continues, because the box that took the snapshot was lost.
void discard_abandoned(const std::string& directory, const std::string& job,
                       const std::vector<uint64_t>& attempts) {
  const auto before = fs::file_time_type::clock::now() - kAbandonedAfter;
  for (const uint64_t number : attempts) {
    if (last_change(number_folder(directory, job, number)) < before) {
      discard(directory, job, number);
    }
  }
}

bool is_of_run(const Manifest& manifest, const Choice& choice) {
  if (choice.ranks.empty() || manifest.number == choice.begun_with) return true;
  return std::any_of(manifest.ranks.begin(), manifest.ranks.end(), [&](uint64_t rank) {
    return std::find(choice.ranks.begin(), choice.ranks.end(), rank) != choice.ranks.end();
  });
}

// Returns the newest snapshot of the run; number 0 if there is none. A damaged manifest is an error
// only if its snapshot is newer than that, because it may be of the run.
Result<Manifest> choose_latest(const std::string& directory, const std::string& job,
                               const Choice& choice) {
  const auto all = numbers(job_folder(directory, job));
  if (!all) return all.error();
  for (auto number = all->rbegin(); number != all->rend(); ++number) {
    auto manifest = read_manifest(manifest_path(directory, job, *number));
    if (!manifest) return manifest.error();
    const bool fits = is_whole(*manifest, job, *number) && is_of_run(**manifest, choice);
    if (fits) return std::move(**manifest);
  }
  return Manifest();
}

Result<Manifest> choose(const std::string& directory, const std::string& job,
                        const Choice& choice) {
  const std::string& which = choice.which;
  if (which == "latest") return choose_latest(directory, job, choice);
  std::vector<Error> damaged;
  auto finished = list(directory, job, damaged);
  std::erase_if(finished, [&](const Manifest& one) { return !is_of_run(one, choice); });
  const std::string where = job_folder(directory, job);
  const auto wanted = to_number(which);
  const auto found = std::find_if(finished.begin(), finished.end(),
                                  [&](const auto& one) { return one.number == wanted; });
  if (found != finished.end()) return std::move(*found);
  if (!damaged.empty()) return damaged.back();
  std::string text = "there is no snapshot " + which + " of job '" + job + "' in " + where;
  text += finished.empty() ? "; the job has no snapshots" : "; there are";
  for (const Manifest& one : finished) text.append(" ").append(std::to_string(one.number));
  return Error{ErrorCode::kNotFound, text};
}

}  // namespace

std::string job_folder(const std::string& directory, const std::string& job) {
  std::string name;
  for (const char character : job) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(character)) != 0 ||
                          character == '-' || character == '_' ||
                          (character == '.' && !name.empty());
    if (is_plain) {
      name += character;
      continue;
    }
    std::array<char, 4> encoded;
    std::snprintf(encoded.data(), encoded.size(), "%%%02X", static_cast<unsigned char>(character));
    name += encoded.data();
  }
  return directory + "/" + name;
}

std::string number_folder(const std::string& directory, const std::string& job, uint64_t number) {
  PBOX_DCHECK(number > 0);
  return job_folder(directory, job) + "/" + std::to_string(number);
}

std::string part_name(const PartHead& head) {
  return "part-" + std::to_string(head.part) + "-of-" + std::to_string(head.parts);
}

Result<uint64_t> make_next(const std::string& directory, const std::string& job) {
  PBOX_CHECK(!job.empty());
  const std::string folder = job_folder(directory, job);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return Error{ErrorCode::kSystem,
                 "cannot create " + folder + ": " + error.message() +
                     "; give pboxd write access, or name another folder in [snapshots] directory"};
  }
  for (;;) {
    const auto before = numbers(folder);
    if (!before) return before.error();
    discard_abandoned(directory, job, *before);
    const uint64_t next = before->empty() ? 1 : before->back() + 1;
    const std::string fresh = number_folder(directory, job, next);
    if (fs::create_directory(fresh, error)) {
      if (const Status status = storage::sync_folder(folder); !status) return status.error();
      return next;
    }
    if (error) {
      return Error{ErrorCode::kSystem, "cannot create " + fresh + ": " + error.message()};
    }
  }
}

void discard(const std::string& directory, const std::string& job, uint64_t number) {
  const auto manifest = read_manifest(manifest_path(directory, job, number));
  if (!manifest || *manifest) return;
  const std::string folder = number_folder(directory, job, number);
  const auto names = names_in(folder);
  if (!names) return;
  std::error_code ignored;
  for (const std::string& name : *names) fs::remove(folder + "/" + name, ignored);
}

Status finish(const std::string& directory, const Manifest& manifest) {
  PBOX_CHECK(manifest.number > 0 && !manifest.parts.empty());
  const std::string folder = number_folder(directory, manifest.job, manifest.number);
  for (const PartFile& part : manifest.parts) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(folder + "/" + part.name, error);
    if (!error && bytes == part.bytes) continue;
    return Error{ErrorCode::kNotFound,
                 "box " + part.box + " has written " + part.name + ", but it is not in " + folder +
                     " as this box sees it; with several boxes, [snapshots] directory must be on "
                     "storage that all of them share"};
  }
  const Status written = storage::replace_file(folder + "/" + kManifestName, to_text(manifest));
  if (!written) return written;
  remove_old(directory, manifest);
  return ok_status();
}

std::vector<Manifest> list(const std::string& directory, const std::string& job,
                           std::vector<Error>& damaged) {
  std::vector<Manifest> finished;
  const auto all = numbers(job_folder(directory, job));
  if (!all) {
    damaged.push_back(all.error());
    return finished;
  }
  for (const uint64_t number : *all) {
    auto manifest = read_manifest(manifest_path(directory, job, number));
    if (!manifest) {
      damaged.push_back(manifest.error());
    } else if (is_whole(*manifest, job, number)) {
      finished.push_back(std::move(**manifest));
    }
  }
  return finished;
}

std::vector<std::string> jobs(const std::string& directory) {
  std::vector<std::string> names;
  const auto folders = names_in(directory);
  if (!folders) return names;
  for (const std::string& folder : *folders) {
    const std::string path = directory + "/" + folder;
    const auto all = numbers(path);
    if (!all) continue;
    for (const uint64_t number : *all) {
      const auto manifest =
          read_manifest(path + "/" + std::to_string(number) + "/" + kManifestName);
      if (!manifest || !*manifest) continue;
      names.push_back((*manifest)->job);
      break;
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

Status check_tenant(const Manifest& manifest, const Choice& choice) {
  const bool is_stated = !manifest.tenant.empty() && !choice.tenant.empty();
  if (!is_stated || manifest.tenant == choice.tenant) return ok_status();
  return Error{ErrorCode::kMismatch, "snapshot " + std::to_string(manifest.number) + " of job '" +
                                         manifest.job + "' is of tenant '" + manifest.tenant +
                                         "', and this job is of tenant '" + choice.tenant +
                                         "'; start the job without restore"};
}

// Compares the sizes of the job's tensors with those in the snapshot. A part knows its pieces, not
// the sizes. The pieces of a tensor ascend with the parts, so the last part's piece is the tensor's
// last.
Status check_sizes(const std::string& directory, const Manifest& manifest, const PartHead& part) {
  if (part.part + 1 != part.parts) return ok_status();
  std::map<std::string, uint64_t> sizes;  // elements, by tensor
  for (const PartFile& file : manifest.parts) {
    const auto head =
        read_head(number_folder(directory, part.job, manifest.number) + "/" + file.name, file);
    if (!head) return head.error();
    for (const Tensor& tensor : head->tensors) {
      uint64_t& size = sizes[tensor.name];
      size = std::max(size, tensor.first_element + tensor.elements);
    }
  }
  for (const Tensor& tensor : part.tensors) {
    const auto found = sizes.find(tensor.name);
    const uint64_t wanted = tensor.first_element + tensor.elements;
    if (found == sizes.end() || found->second == wanted) continue;
    return Error{ErrorCode::kMismatch,
                 "tensor '" + tensor.name + "' has " + std::to_string(found->second) +
                     " elements in snapshot " + std::to_string(manifest.number) + " of job '" +
                     part.job + "', but " + std::to_string(wanted) +
                     " in this job; start the job with the same tensors as before, or without "
                     "restore"};
  }
  return ok_status();
}

}  // namespace

Result<Restored> load(const std::string& directory, const PartHead& part, const Choice& choice,
                      const std::atomic<bool>& stopped) {
  const auto manifest = choose(directory, part.job, choice);
  if (!manifest) return manifest.error();
  Restored restored{.number = manifest->number, .steps = manifest->steps, .chunks = {}};
  if (manifest->number == 0) return restored;
  if (const Status permitted = check_tenant(*manifest, choice); !permitted) {
    return permitted.error();
  }
  if (const Status fits = check_sizes(directory, *manifest, part); !fits) return fits.error();
  const std::string folder = number_folder(directory, part.job, manifest->number);
  PlacedChunks wanted = chunks_of(part);
  for (const PartFile& file : manifest->parts) {
    const Status read =
        read_part(folder + "/" + file.name, file, part, stopped, wanted, restored.chunks);
    if (!read) return read.error();
    if (wanted.empty()) return restored;
  }
  if (wanted.empty()) return restored;
  return Error{ErrorCode::kMismatch,
               "snapshot " + std::to_string(manifest->number) + " of job '" + part.job +
                   "' does not contain tensor '" + wanted.begin()->first.first +
                   "'; start the job with the same tensors as before, or without restore"};
}

Status verify(const std::string& directory, const Manifest& manifest) {
  const std::string folder = number_folder(directory, manifest.job, manifest.number);
  std::vector<char> buffer(1u << 20);
  for (const PartFile& part : manifest.parts) {
    const std::string path = folder + "/" + part.name;
    auto file = storage::InputFile::open(path);
    if (!file) return file.error();
    uint32_t crc32c = 0;
    for (uint64_t left = part.bytes; left > 0;) {
      const size_t bytes = std::min<uint64_t>(left, buffer.size());
      const auto all = file->read(buffer.data(), bytes);
      if (!all) return all.error();
      if (!*all) return Error{ErrorCode::kMismatch, path + " is truncated"};
      crc32c = wire::crc32c(crc32c, reinterpret_cast<const std::byte*>(buffer.data()), bytes);
      PBOX_DCHECK(bytes <= left);
      left -= bytes;
    }
    if (crc32c == part.crc32c) continue;
    return Error{ErrorCode::kMismatch,
                 path + " is damaged: its checksum differs from the manifest's"};
  }
  return ok_status();
}

}  // namespace pbox::snapshot
