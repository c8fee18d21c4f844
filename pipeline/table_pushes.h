// Gradients of tables, by rows or in whole fragments (nic/wire/rows.h). A row that no rank pushes
// is neither summed nor stepped. On the data path; used by Engine alone.
#pragma once

#include "nic/wire/rows.h"
#include "pipeline/engine_context.h"
#include "pipeline/job_shard.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::pipeline {

class TablePushes {
 public:
  TablePushes(EngineContext& context, const reduce::Kernels& kernels)
      : context_(context), kernels_(kernels) {}

  // Reads a PUSH of a gradient. Returns false, and counts the packet, if it does not fit the chunk.
  bool read(const Chunk& chunk, const wire::Parsed& parsed, wire::RowsView& rows) const;
  // Adds rows whose fragments were claimed just now to the sum of the open round.
  void add(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed,
           const wire::RowsView& rows) const;
  // Models that apply pushes on arrival: steps the weights by such rows.
  void apply(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed,
             const wire::RowsView& rows) const;

 private:
  EngineContext& context_;
  const reduce::Kernels& kernels_;
};

}  // namespace pbox::pipeline
