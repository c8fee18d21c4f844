// A snapshot: the weights and optimizer state of a job as they were between the same two rounds of
// all its chunks. On disk it is a folder DIRECTORY/JOB/NUMBER with a file for each part of the job
// and a manifest, which is written last: a folder without a manifest is not a snapshot. The types
// here are plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nic/wire/header.h"
#include "pipeline/state/chunk_state.h"

namespace pbox::snapshot {

// A tensor, or the piece of one that a part owns. A piece begins at a chunk boundary; other parts
// own the other pieces.
struct Tensor {
  std::string name;
  uint64_t first_element = 0;
  uint64_t elements = 0;
  wire::Dtype dtype = wire::Dtype::kF32;
};

// Describes the state in a part's file and how it is divided into chunks, in the order of the
// tensors.
struct PartHead {
  std::string job;
  uint32_t part = 0;
  uint32_t parts = 1;
  uint32_t chunk_bytes = 0;
  optimizer::OptimizerKind optimizer = optimizer::OptimizerKind::kSgd;
  std::vector<Tensor> tensors;
};

struct PartFile {
  std::string box;   // name of the box that wrote it
  std::string name;  // file name in the snapshot's folder
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
};

struct Manifest {
  std::string job;
  uint64_t number = 0;  // number among the job's snapshots, from 1; the newest has the highest
  // Optimizer steps applied to the weights. Those of a snapshot from which the job started count.
  uint64_t steps = 0;
  std::string tenant = {};  // tenant of the job's ranks; empty if they had no keys
  std::string taken_at;     // UTC, for example 2026-01-31T23:59:59Z
  // Incarnations of the job's ranks. A rank whose incarnation is listed here took part in the run
  // to which the snapshot belongs.
  std::vector<uint64_t> ranks;
  std::vector<PartFile> parts;
};

// Selects a snapshot of a job.
struct Choice {
  std::string which = "latest";  // or a number, in decimal
  // If not empty, the choice is among snapshots whose manifest lists one of these incarnations, and
  // snapshot `begun_with`, from which the job started.
  std::vector<uint64_t> ranks = {};
  uint64_t begun_with = 0;  // 0 if the job did not start from a snapshot
  // The tenant that asks. A snapshot of another tenant is refused. Empty: the ranks have no keys.
  std::string tenant = {};
};

// The state with which a part starts. `number` is 0 if there is no snapshot.
struct Restored {
  uint64_t number = 0;
  uint64_t steps = 0;
  std::vector<pipeline::ChunkState> chunks;
};

}  // namespace pbox::snapshot
