// The bytes of a chunk's state in a snapshot's file and in a message between boxes. They are
// written out here, because old snapshots must load and boxes of two releases exchange parts.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "appliance/control/part_state.h"
#include "appliance/snapshot/part_file.h"
#include "nic/wire/crc32c.h"

namespace pbox::snapshot {
namespace {

const std::atomic<bool> kNotStopped = false;

const PartHead kHead{.job = "j",
                     .part = 0,
                     .parts = 1,
                     .chunk_bytes = 4096,
                     .optimizer = optimizer::OptimizerKind::kMomentum,
                     .tensors = {{"w", 0, 3, wire::Dtype::kF32}}};

template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The file of kHead, whose one chunk has weights 1, 2, 3, momentum -1, -2, -3 and 9 steps.
std::string golden_file() {
  const std::string head = R"({"chunk_bytes":4096,"job":"j","optimizer":2,"part":0,"parts":1,)"
                           R"("tensors":[{"dtype":0,"elements":3,"first_element":0,"name":"w"}]})";
  std::string bytes = "PBOXSNAP";
  append(bytes, uint32_t{1});  // format
  append(bytes, static_cast<uint32_t>(head.size()));
  bytes += head;
  append(bytes, uint32_t{0});  // chunk
  append(bytes, uint32_t{6});  // values
  append(bytes, uint64_t{9});  // steps
  for (const float value : {1.0f, 2.0f, 3.0f, -1.0f, -2.0f, -3.0f}) append(bytes, value);
  return bytes;
}

std::string temporary_path() {
  return std::filesystem::temp_directory_path() / ("pbox-part-" + std::to_string(getpid()));
}

PartFile facts_of(const std::string& bytes) {
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {
      .box = {}, .name = {}, .bytes = bytes.size(), .crc32c = wire::crc32c(0, data, bytes.size())};
}

}  // namespace

TEST_CASE("a snapshot's file has the bytes of format 1") {
  pipeline::ShardSpec spec;
  spec.mode = pipeline::Mode::kOptimize;
  spec.optimizer.kind = kHead.optimizer;
  spec.sessions.push_back({1, 4096});
  spec.job_chunk_count = 1;
  spec.chunks.push_back({.chunk = 0, .elements = 3});
  const auto shard = std::move(*pipeline::JobShard::create(spec));
  pipeline::Chunk& chunk = shard->chunks()[0];
  chunk.rounds_finished = 10;
  for (const int index : {0, 1, 2}) {
    chunk.weights[index] = static_cast<float>(index + 1);
    chunk.optimizer_state[index] = -chunk.weights[index];
  }
  auto cut = std::move(*pipeline::StateCut::create(*shard, 10));
  cut->copy_resting(*shard);

  const std::string path = temporary_path();
  const auto written = write_part(path, kHead, {std::move(cut)}, kNotStopped);
  REQUIRE(written);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(path);
  CHECK(bytes == golden_file());
  CHECK(written->bytes == golden_file().size());
  CHECK(written->crc32c == facts_of(golden_file()).crc32c);
}

TEST_CASE("a file of format 1 loads") {
  const std::string path = temporary_path();
  std::ofstream(path, std::ios::binary) << golden_file();
  PlacedChunks wanted = chunks_of(kHead);
  std::vector<pipeline::ChunkState> chunks;
  const Status read = read_part(path, facts_of(golden_file()), kHead, kNotStopped, wanted, chunks);
  std::filesystem::remove(path);
  REQUIRE(read);
  CHECK(wanted.empty());
  REQUIRE(chunks.size() == 1);
  CHECK(chunks[0].chunk == 0);
  CHECK(chunks[0].rounds_finished == 1);
  CHECK(chunks[0].steps == 9);
  CHECK(chunks[0].values == std::vector<float>{1, 2, 3, -1, -2, -3});
}

TEST_CASE("a chunk's state in a message has the bytes that other releases expect") {
  control::PartState state;
  state.epoch = 4;
  state.chunks.push_back({.chunk = 7,
                          .rounds_finished = 12,
                          .steps = 11,
                          .values = {1, 2, 3, -1, -2, -3},
                          .contributors = {2},
                          .fragment_bytes = 1024,
                          .clocks = {13, 1, 0}});
  proto::AskState question;
  question.set_epoch(4);
  const auto answer = control::answer_of(state, question);
  REQUIRE(answer.pieces_size() == 1);
  const proto::ChunkPiece& piece = answer.pieces(0);
  CHECK(piece.chunk() == 7);
  CHECK(piece.rounds() == 12);
  CHECK(piece.steps() == 11);
  CHECK(piece.fragment_bytes() == 1024);
  std::string values;
  for (const float value : {1.0f, 2.0f, 3.0f, -1.0f, -2.0f, -3.0f}) append(values, value);
  CHECK(piece.values() == values);
  std::string checked = values;
  for (const uint64_t number : {12, 11, 13, 1, 0}) append(checked, number);
  CHECK(piece.checksum() == facts_of(checked).crc32c);
}

}  // namespace pbox::snapshot
