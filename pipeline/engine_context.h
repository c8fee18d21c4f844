// State that the parts of one pipeline's engine share: sessions, jobs, counters and the time. Only
// the pipeline's core touches it, except that any thread may read the counters.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "nic/wire/tag.h"
#include "pipeline/job_shard.h"
#include "pipeline/observe/counters.h"

namespace pbox::pipeline {

struct SessionEntry {
  uint32_t spi = 0;
  JobShard* shard = nullptr;
  Session* session = nullptr;  // null: no session has this index
};

// The sessions of a pipeline by wire::spi_index. Every spi maps to an entry, so the spi of any
// packet can be looked up unchecked.
class SessionTable {
 public:
  SessionTable() : entries_(limits::kSessionsPerPipelineMax) {}

  SessionEntry& at(uint32_t spi) {
    PBOX_DCHECK(wire::spi_index(spi) < entries_.size());
    return entries_[wire::spi_index(spi)];
  }
  const SessionEntry& at(uint32_t spi) const {
    PBOX_DCHECK(wire::spi_index(spi) < entries_.size());
    return entries_[wire::spi_index(spi)];
  }

 private:
  std::vector<SessionEntry> entries_;
};

struct EngineContext {
  wire::TagPolicy tag;
  Counters counters;
  uint64_t now_ns = 0;  // CLOCK_MONOTONIC of the last burst, tick or returned chunk
  SessionTable sessions;
  std::vector<JobShard*> shards;  // installed, in the order of their installation
};

}  // namespace pbox::pipeline
