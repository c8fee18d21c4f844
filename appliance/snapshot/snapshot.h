// What a snapshot is: the weights and the optimizer's state of a job as they were between the same
// two rounds of all its chunks. On disk it is a folder of its own, DIRECTORY/JOB/NUMBER, with a
// file for each part of the job, and a manifest, which comes last: without it there is no snapshot.
// Pure values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nic/wire/header.h"
#include "pipeline/state/chunk_state.h"

namespace pbox::snapshot {

// Or a piece of one, which begins with a chunk: the others are in other parts.
struct Tensor {
  std::string name;
  uint64_t first_element = 0;
  uint64_t elements = 0;
  wire::Dtype dtype = wire::Dtype::kF32;
};

// Whose state a part's file has, and how it is cut into chunks: in the order of the tensors.
struct PartHead {
  std::string job;
  uint32_t part = 0;
  uint32_t parts = 1;
  uint32_t chunk_bytes = 0;
  optimizer::OptimizerKind optimizer = optimizer::OptimizerKind::kSgd;
  std::vector<Tensor> tensors;
};

struct PartFile {
  std::string box;   // that wrote it
  std::string name;  // in the snapshot's folder
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
};

struct Manifest {
  std::string job;
  uint64_t number = 0;   // of the job's snapshots, from 1; the newest has the greatest
  uint64_t steps = 0;    // that the weights have taken, since the job first began with none
  std::string taken_at;  // UTC, as 2026-01-31T23:59:59Z
  // Incarnations of the job's ranks: whoever finds one of its own here was in it.
  std::vector<uint64_t> ranks;
  std::vector<PartFile> parts;
};

// Which snapshot of a job: "latest", or a number.
struct Choice {
  std::string which = "latest";
  // Not empty: only one that one of these was in, or that the job began with.
  std::vector<uint64_t> ranks = {};
  uint64_t begun_with = 0;
};

// What a part begins with. number 0: there is no snapshot.
struct Restored {
  uint64_t number = 0;
  uint64_t steps = 0;
  std::vector<pipeline::ChunkState> chunks;
};

}  // namespace pbox::snapshot
