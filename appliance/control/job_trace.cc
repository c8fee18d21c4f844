#include "appliance/control/job_trace.h"

#include "appliance/control/job.h"
#include "appliance/control/tensors_by_chunk.h"
#include "base/clock.h"
#include "pipeline/sync/rules.h"

namespace pbox::control {
namespace {

using pipeline::CommandKind;

// A trace that no one fetches within this time after its end is discarded to free its memory.
constexpr uint64_t kKeptNs = 60 * kNanosPerSecond;

}  // namespace

void JobTrace::begin(PipelineHost& host, const JobShards& shards, size_t events_max,
                     uint64_t now_ns, uint64_t until_ns) {
  PBOX_CHECK(shards.running());
  end(host, shards);
  begun_ns_ = now_ns;
  until_ns_ = until_ns;
  const auto& all = shards.all();
  for (uint32_t index = 0; index < all.size(); ++index) {
    traces_.push_back(
        std::make_unique<pipeline::RoundTrace>(events_max / all.size(), until_ns, &monotonic_ns));
    traces_.back()->first_rounds().resize(all[index]->chunks().size());
    host.execute(
        shards.pipelines()[index],
        {.kind = CommandKind::kTrace, .shard = all[index].get(), .trace = traces_.back().get()});
  }
}

void JobTrace::stop(PipelineHost& host, const JobShards& shards) const {
  for (uint32_t index = 0; index < shards.all().size(); ++index) {
    host.execute(shards.pipelines()[index],
                 {.kind = CommandKind::kTrace, .shard = shards.all()[index].get()});
  }
}

void JobTrace::end(PipelineHost& host, const JobShards& shards) {
  if (traces_.empty()) return;
  stop(host, shards);
  traces_.clear();
}

void JobTrace::on_tick(PipelineHost& host, const JobShards& shards, uint64_t now_ns) {
  if (now_ns >= until_ns_ + kKeptNs) end(host, shards);
}

void Job::add_trace(PipelineHost& host, TraceView& view) const {
  trace_.stop(host, shards_);
  view.job = spec_.name;
  view.world_size = spec_.world_size;
  view.begun_ns = trace_.begun_ns();
  view.ended_ns = trace_.until_ns();
  const TensorsByChunk tensors(spec_);
  const std::vector<int32_t> priorities = chunk_priorities();
  const std::vector<wire::SyncSpec> rules = shards_.models().rules();
  std::vector<uint32_t> index_of(shards_.chunk_count(), UINT32_MAX);
  for (uint32_t index = 0; index < trace_.traces().size(); ++index) {
    const pipeline::RoundTrace& trace = *trace_.traces()[index];
    view.lost_events += trace.lost();
    for (const pipeline::TraceEvent& event : trace.events()) {
      uint32_t& chunk = index_of[event.chunk];
      if (chunk == UINT32_MAX) {
        chunk = static_cast<uint32_t>(view.chunks.size());
        const wire::SyncSpec& rule = rules[event.chunk];
        view.chunks.push_back({.part = spec_.part,
                               .chunk = event.chunk,
                               .pipeline = shards_.pipelines()[index],
                               .tensor = tensors.name(event.chunk),
                               .priority = priorities[event.chunk],
                               .has_own_rounds = wire::applies_on_arrival(rule.model),
                               .is_sent_unasked = sync::sends_unasked(rule)});
      }
      view.events.push_back({event, chunk});
    }
  }
}

}  // namespace pbox::control
