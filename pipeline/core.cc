#include "pipeline/core.h"

#include <algorithm>

namespace pbox::pipeline {

Core::Core(const CoreOptions& options)
    : options_(options),
      kernels_(reduce::kernels()),
      sessions_(limits::kSessionsPerPipelineMax),
      replies_(kReplyCapacity) {
  shards_.reserve(limits::kJobsMax);
}

void Core::execute(const Command& command) {
  JobShard& shard = *command.shard;
  switch (command.kind) {
    case CommandKind::kInstall: install(shard); return;
    case CommandKind::kRemove: remove(shard); return;
    case CommandKind::kSetLearningRate:
      shard.optimizer.learning_rate = command.learning_rate;
      return;
    case CommandKind::kSetCredit:
      for (Session& session : shard.sessions()) session.credit_bytes = command.credit_bytes;
      send_grants(shard);
      return;
  }
}

void Core::install(JobShard& shard) {
  PBOX_CHECK(shards_.size() < limits::kJobsMax);
  shards_.push_back(&shard);
  for (Session& session : shard.sessions()) {
    SessionEntry& entry = sessions_[wire::spi_index(session.spi)];
    PBOX_CHECK(entry.session == nullptr && spi_pipeline(session.spi) == options_.pipeline_index);
    session.resend_budget_bytes = 4 * int64_t{session.credit_bytes};
    entry = {session.spi, &shard, &session};
  }
}

void Core::remove(JobShard& shard) {
  std::erase(shards_, &shard);
  next_shard_ = 0;
  for (const Session& session : shard.sessions()) sessions_[wire::spi_index(session.spi)] = {};
  // Packets made but not sent, and replies that wait, may point into the shard's memory. They are
  // few, and every one of them is covered by a worker's timer: drop them all.
  outgoing_begin_ = outgoing_end_ = 0;
  reply_head_ = reply_tail_ = 0;
}

}  // namespace pbox::pipeline
