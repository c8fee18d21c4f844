// Jobs whose sums go on to another box before they are results.
#include "appliance/control/job_registry.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::appliance {
namespace {

Error cannot_relay(const JobSpec& spec, const std::string& what) {
  return {ErrorCode::kInvalidArgument,
          spec.title() + ": " + what + " ([upstream]: the sums of this box go on to another one)"};
}

// "layer1.weight[3]": what the other box shows of a chunk. A name that is too long loses its end.
std::string chunk_name(const std::string& tensor, uint64_t index) {
  std::string number = "[";
  number.append(std::to_string(index)).append("]");
  return tensor.substr(0, limits::kTensorNameBytesMax - number.size()) + number;
}

// Of all chunks together, what a JOIN has room for beside the numbers.
bool names_fit(const std::vector<RelayedChunk>& chunks) {
  constexpr size_t kNumbersBytes = 24;
  size_t bytes = 0;
  for (const RelayedChunk& chunk : chunks) bytes += chunk.name.size() + kNumbersBytes;
  return bytes <= limits::kControlMessageBytesMax * 3 / 4;
}

}  // namespace

Status check_relayed(const JobSpec& spec) {
  if (spec.mode != pipeline::Mode::kAggregate) {
    return cannot_relay(spec,
                        "mode optimize has no meaning here; use mode aggregate, and let the "
                        "ranks run the optimizer");
  }
  if (spec.on_worker_lost == LostPolicy::kPartial) {
    return cannot_relay(spec,
                        "on_worker_lost partial cannot be told the other racks; use wait or "
                        "abort");
  }
  constexpr size_t kChunksMax = limits::kTensorsPerJobMax - kTensorsBesideChunks;
  const size_t chunks = cut_into_chunks(spec).size();
  if (chunks > kChunksMax) {
    std::string what = "chunk_bytes ";
    what.append(std::to_string(spec.chunk_bytes)).append(" makes ");
    what.append(std::to_string(chunks)).append(" chunks, at most ");
    what.append(std::to_string(kChunksMax)).append(" can go on; raise chunk_bytes");
    return cannot_relay(spec, what);
  }
  return ok_status();
}

RelaySpec Job::relay_spec() const {
  RelaySpec relay{spec_.name, spec_.world_size, spec_.numerics, join_timeout_ns, {}};
  const auto chunks = cut_into_chunks(spec_);
  relay.chunks.reserve(chunks.size());
  for (const TensorSpec& tensor : spec_.tensors) {
    const uint64_t count = wire::chunk_count(tensor.bytes(), spec_.chunk_bytes);
    for (uint64_t index = 0; index < count; ++index) {
      const auto& chunk = chunks[relay.chunks.size()];
      relay.chunks.push_back({chunk_name(tensor.name, index), chunk.elements, chunk.priority});
    }
  }
  if (!names_fit(relay.chunks)) {
    for (size_t chunk = 0; chunk < relay.chunks.size(); ++chunk) {
      relay.chunks[chunk].name = std::to_string(chunk);
    }
  }
  return relay;
}

std::vector<RelayLane> Job::relay_lanes(PipelineHost& host) const {
  std::vector<RelayLane> lanes;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const uint32_t pipeline = pipelines_[index];
    lanes.push_back({shards_[index]->uplink.get(), [&host, pipeline] { host.wake(pipeline); }});
  }
  return lanes;
}

// The ranks wait until all racks are in, and are told if they do not come.
bool JobRegistry::awaits_relay(Job& job) {
  if (!job.spec().relayed) return false;
  if (job.relay == nullptr) {
    job.relay_number = ++questions_;
    job.relay = upstream_->join(job.relay_spec(), [this, alive = alive_, part = key(job.spec()),
                                                   number = job.relay_number](Status status) {
      if (*alive) on_relay(part, number, status);
    });
    const RelayView relay = job.relay->view();
    note(RegistryEvent::Severity::kInfo, "upstream_joining",
         job.spec().title() + ": all ranks are here; joins box " + relay.box + " as rank " +
             std::to_string(relay.rank) + " of " + std::to_string(relay.racks) + " racks");
  }
  return !job.relay->view().is_joined;
}

void JobRegistry::on_relay(const JobKey& part, uint64_t number, const Status& status) {
  const auto found = jobs_.find(part);
  if (found == jobs_.end() || found->second->relay_number != number) return;
  Job& job = *found->second;
  const RelayView relay = job.relay->view();
  if (!status) {
    fail_job(job, {status.error().code,
                   job.spec().title() + ": box " + relay.box +
                       ", which this box's sums go on to: " + status.error().message});
    return;
  }
  note(RegistryEvent::Severity::kInfo, "upstream_joined",
       job.spec().title() + ": box " + relay.box + " sums " + std::to_string(relay.racks) +
           " racks with " + std::to_string(relay.workers) + " ranks in all");
  if (job.all_joined()) start_job(job);
}

}  // namespace pbox::appliance
