#include "appliance/snapshot/part_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "appliance/storage/input_file.h"
#include "appliance/storage/replace_file.h"
#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/crc32c.h"

namespace pbox::snapshot {
namespace {

using storage::FileReplacement;
using storage::InputFile;
using Json = nlohmann::json;

constexpr std::array<char, 8> kMagic = {'P', 'B', 'O', 'X', 'S', 'N', 'A', 'P'};
constexpr uint32_t kPartFormat = 1;
constexpr uint32_t kHeadBytesMax = 64u << 20;

struct Preamble {
  std::array<char, 8> magic = kMagic;
  uint32_t format = kPartFormat;
  uint32_t head_bytes = 0;
};
static_assert(sizeof(Preamble) == 16);

std::string to_text(const PartHead& head) {
  Json tensors = Json::array();
  for (const Tensor& tensor : head.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"first_element", tensor.first_element},
                       {"elements", tensor.elements},
                       {"dtype", static_cast<uint32_t>(tensor.dtype)}});
  }
  return Json{{"job", head.job},
              {"part", head.part},
              {"parts", head.parts},
              {"chunk_bytes", head.chunk_bytes},
              {"optimizer", static_cast<uint32_t>(head.optimizer)},
              {"tensors", std::move(tensors)}}
      .dump();
}

PartHead head_from_text(const std::string& text) {
  const Json json = Json::parse(text);
  PartHead head{.job = json.at("job"),
                .part = json.at("part"),
                .parts = json.at("parts"),
                .chunk_bytes = json.at("chunk_bytes"),
                .optimizer = json.at("optimizer").get<optimizer::OptimizerKind>(),
                .tensors = {}};
  for (const Json& tensor : json.at("tensors")) {
    head.tensors.push_back({.name = tensor.at("name"),
                            .first_element = tensor.at("first_element"),
                            .elements = tensor.at("elements"),
                            .dtype = tensor.at("dtype").get<wire::Dtype>()});
  }
  return head;
}

// Writes and computes the checksum of all bytes written.
class Writer {
 public:
  explicit Writer(storage::FileReplacement& file) : file_(&file) {}
  Status write(const void* data, size_t bytes) {
    crc32c_ = wire::crc32c(crc32c_, static_cast<const std::byte*>(data), bytes);
    bytes_ += bytes;
    return file_->write(data, bytes);
  }
  uint64_t bytes() const { return bytes_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  storage::FileReplacement* file_;
  uint64_t bytes_ = 0;
  uint32_t crc32c_ = 0;
};

Status write_head(Writer& writer, const PartHead& head) {
  const std::string text = to_text(head);
  const Preamble preamble{.head_bytes = static_cast<uint32_t>(text.size())};
  if (const Status status = writer.write(&preamble, sizeof(preamble)); !status) return status;
  return writer.write(text.data(), text.size());
}

Error shutting_down() {
  return {ErrorCode::kUnavailable, "the box is shutting down"};
}

Status write_cut(Writer& writer, const pipeline::StateCut& cut, const std::atomic<bool>& stopped) {
  for (const pipeline::StateView& copy : cut.copies()) {
    if (stopped) return shutting_down();
    PBOX_CHECK(copy.rounds_finished > 0);
    const pipeline::StateRecord record = record_of(copy);
    if (const Status status = writer.write(&record, sizeof(record)); !status) return status;
    for (const auto values : packed_sections(copy)) {
      const Status status = writer.write(values.data(), values.size_bytes());
      if (!status) return status;
    }
  }
  return ok_status();
}

Error mismatch(const std::string& path, const std::string& what) {
  return {ErrorCode::kMismatch, path + ": " + what};
}

// Reads and computes the checksum of all bytes read. Never reads more than the `bytes` that the
// manifest states.
class Reader {
 public:
  Reader(storage::InputFile& file, uint64_t bytes) : file_(&file), left_(bytes) {}
  // Returns false if fewer bytes are left.
  Result<bool> read(void* data, size_t bytes) {
    if (bytes > left_) return false;
    const auto all = file_->read(data, bytes);
    if (!all) return all.error();
    if (!*all) return false;
    PBOX_DCHECK(bytes <= left_);
    left_ -= bytes;
    crc32c_ = wire::crc32c(crc32c_, static_cast<const std::byte*>(data), bytes);
    return true;
  }
  uint64_t left() const { return left_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  storage::InputFile* file_;
  uint64_t left_;
  uint32_t crc32c_ = 0;
};

Result<PartHead> read_unchecked_head(Reader& reader, const std::string& path) {
  Preamble preamble;
  auto whole = reader.read(&preamble, sizeof(preamble));
  if (!whole) return whole.error();
  if (!*whole || preamble.magic != kMagic) return mismatch(path, "it is not a part of a snapshot");
  if (preamble.format != kPartFormat || preamble.head_bytes > kHeadBytesMax) {
    return mismatch(path, "its format is " + std::to_string(preamble.format) +
                              ", but this release reads format " + std::to_string(kPartFormat));
  }
  std::string text(preamble.head_bytes, '\0');
  whole = reader.read(text.data(), text.size());
  if (!whole) return whole.error();
  if (!*whole) return mismatch(path, "it is truncated");
  try {
    return head_from_text(text);
  } catch (const Json::exception& error) {
    return mismatch(path, std::string("its head is damaged: ") + error.what());
  }
}

// Returns whether a file of `bytes` bytes can have this head. It is checked before the head is
// used, because the checksum is known only after the whole file has been read.
bool is_possible(const PartHead& head, uint64_t bytes) {
  if (head.chunk_bytes < limits::kChunkBytesMin) return false;
  if (static_cast<size_t>(head.optimizer) >= optimizer::kOptimizerKindCount) return false;
  uint64_t elements = bytes / sizeof(float);  // upper bound of the number of weights
  for (const Tensor& tensor : head.tensors) {
    if (static_cast<uint32_t>(tensor.dtype) >= wire::kDtypeCount) return false;
    if (tensor.elements > elements) return false;
    elements -= tensor.elements;
  }
  return true;
}

Result<PartHead> read_head(Reader& reader, const std::string& path, const PartFile& expected) {
  auto head = read_unchecked_head(reader, path);
  if (head && !is_possible(*head, expected.bytes)) return mismatch(path, "its head is damaged");
  return head;
}

// Returns all chunks of a part, indexed by number.
std::vector<std::pair<ChunkPlace, PlacedChunk>> placed(const PartHead& head) {
  std::vector<std::pair<ChunkPlace, PlacedChunk>> list;
  for (const Tensor& tensor : head.tensors) {
    const uint64_t per_chunk = std::max(1u, head.chunk_bytes / wire::dtype_bytes(tensor.dtype));
    for (uint64_t first = 0; first < tensor.elements; first += per_chunk) {
      list.push_back(
          {{tensor.name, (tensor.first_element + first) / per_chunk},
           {.chunk = static_cast<uint32_t>(list.size()),
            .elements = static_cast<uint32_t>(std::min(per_chunk, tensor.elements - first))}});
    }
  }
  return list;
}

// Checks whether chunks of `file` can be restored into `part`.
Status check_fit(const std::string& path, const PartHead& file, const PartHead& part) {
  std::map<std::string, const Tensor*> wanted;
  for (const Tensor& tensor : part.tensors) wanted[tensor.name] = &tensor;
  const bool has_some = std::any_of(file.tensors.begin(), file.tensors.end(),
                                    [&](const auto& one) { return wanted.contains(one.name); });
  if (!has_some) return ok_status();
  if (file.chunk_bytes != part.chunk_bytes) {
    return mismatch(
        path, "its chunks have " + std::to_string(file.chunk_bytes) + " bytes, the job's have " +
                  std::to_string(part.chunk_bytes) +
                  "; start the job with chunk_bytes = " + std::to_string(file.chunk_bytes));
  }
  if (file.optimizer != part.optimizer) {
    return mismatch(path, std::string("it was written with optimizer ") +
                              std::to_string(static_cast<uint32_t>(file.optimizer)) +
                              ", but the job has " +
                              std::to_string(static_cast<uint32_t>(part.optimizer)) +
                              "; start the job with the same optimizer, or without restore");
  }
  for (const Tensor& tensor : file.tensors) {
    const auto found = wanted.find(tensor.name);
    if (found == wanted.end() || found->second->dtype == tensor.dtype) continue;
    return mismatch(path, "tensor '" + tensor.name + "' has dtype " +
                              wire::to_string(tensor.dtype) + ", but in the job it has " +
                              wire::to_string(found->second->dtype));
  }
  return ok_status();
}

}  // namespace

Result<PartFile> write_part(const std::string& path, const PartHead& head, const Cuts& cuts,
                            const std::atomic<bool>& stopped) {
  auto file = storage::FileReplacement::begin(path);
  if (!file) return file.error();
  Writer writer(*file);
  if (const Status status = write_head(writer, head); !status) return status.error();
  for (const auto& cut : cuts) {
    if (const Status status = write_cut(writer, *cut, stopped); !status) return status.error();
  }
  if (const Status status = file->commit(); !status) return status.error();
  return PartFile{.box = {}, .name = {}, .bytes = writer.bytes(), .crc32c = writer.crc32c()};
}

PlacedChunks chunks_of(const PartHead& head) {
  const auto list = placed(head);
  PlacedChunks chunks(list.begin(), list.end());
  PBOX_CHECK(chunks.size() == list.size());  // no two tensors of a part have the same name
  return chunks;
}

Result<PartHead> read_head(const std::string& path, const PartFile& expected) {
  auto file = storage::InputFile::open(path);
  if (!file) return file.error();
  Reader reader(*file, expected.bytes);
  return read_head(reader, path, expected);
}

Status read_part(const std::string& path, const PartFile& expected, const PartHead& part,
                 const std::atomic<bool>& stopped, PlacedChunks& wanted,
                 std::vector<pipeline::ChunkState>& chunks) {
  auto file = storage::InputFile::open(path);
  if (!file) return file.error();
  Reader reader(*file, expected.bytes);
  const auto head = read_head(reader, path, expected);
  if (!head) return head.error();
  if (const Status fits = check_fit(path, *head, part); !fits) return fits;
  const auto list = placed(*head);
  const bool has_wanted = std::any_of(
      list.begin(), list.end(), [&](const auto& chunk) { return wanted.contains(chunk.first); });
  if (!has_wanted) return ok_status();
  std::vector<float> values;
  while (reader.left() > 0) {
    if (stopped) return shutting_down();
    pipeline::StateRecord record;
    auto whole = reader.read(&record, sizeof(record));
    if (!whole) return whole.error();
    if (!*whole || record.chunk >= list.size()) return mismatch(path, "it has an invalid chunk");
    const auto& [place, chunk] = list[record.chunk];
    if (record.value_count != pipeline::state_values(head->optimizer, chunk.elements)) {
      return mismatch(path, "it has an invalid chunk of tensor '" + place.first + "'");
    }
    values.resize(record.value_count);
    whole = reader.read(values.data(), values.size() * sizeof(float));
    if (!whole) return whole.error();
    if (!*whole) return mismatch(path, "it is truncated");
    const auto found = wanted.find(place);
    if (found == wanted.end()) continue;
    if (found->second.elements != chunk.elements) {
      return mismatch(path, "tensor '" + place.first + "' has another size than in the job");
    }
    chunks.push_back({.chunk = found->second.chunk,
                      .rounds_finished = 1,
                      .steps = record.steps,
                      .values = std::move(values),
                      .contributors = {}});
    values.clear();
    PBOX_DCHECK(chunks.back().values.size() == record.value_count);
    wanted.erase(found);
  }
  if (reader.crc32c() != expected.crc32c) {
    return mismatch(path, "it is damaged: its checksum differs from the manifest's");
  }
  return ok_status();
}

}  // namespace pbox::snapshot
