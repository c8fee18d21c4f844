// All pipelines of the box, as the control plane (PipelineHost) and the admin server (views) see
// them. Control thread.
#pragma once

#include <memory>
#include <vector>

#include "appliance/admin/source.h"
#include "appliance/control/pipeline_host.h"
#include "appliance/pipelines/flight_recorder.h"
#include "appliance/pipelines/lane_desk.h"
#include "appliance/pipelines/pipeline_thread.h"
#include "appliance/pipelines/ports.h"
#include "appliance/pipelines/prefaulter.h"
#include "base/descriptor.h"

namespace pbox::pipelines {

class PipelineSet : public control::PipelineHost {
 public:
  // `reports` is the event that report_fd() returns.
  explicit PipelineSet(Descriptor reports);
  ~PipelineSet() override;
  // Opens the ports and starts a thread for each pipeline of the plan. `recorder` may be null; else
  // each pipeline writes to its ring there, and the recorder outlives the set.
  static Result<std::unique_ptr<PipelineSet>> start(const topology::Topology& topology,
                                                    const config::Config& config,
                                                    const FlightRecorder* recorder = nullptr);

  // Offers workers of this host lanes of shared memory from now on.
  Status share_memory(boost::asio::io_context& context);

  uint32_t count() const override { return static_cast<uint32_t>(threads_.size()); }
  control::PipelineInfo info(uint32_t pipeline) const override;
  void execute(uint32_t pipeline, pipeline::Command command) override;
  void wake(uint32_t pipeline) override { threads_[pipeline]->wake(); }
  int report_fd() const override { return reports_.get(); }
  std::unique_ptr<Prefault> prefault(const NumaArena& memory) override {
    return prefaulter_.begin(memory);
  }
  Status install(uint32_t pipeline, pipeline::JobShard& shard) override;
  Result<wire::QueuePairAddress> connect(uint32_t pipeline, uint64_t owner,
                                         const wire::QueuePairAddress& peer) override;
  bool offers_lanes() const override { return desk_ != nullptr; }
  Result<LaneOffer> offer_lanes(uint64_t owner, std::vector<LaneSeat>&& lanes) override;
  void disconnect(uint64_t owner) override;
  void remove(uint32_t pipeline, std::unique_ptr<pipeline::JobShard> shard) override;
  const Ports& ports() const { return *ports_; }
  // Returns what devices have reported since the last call, one line per event.
  std::vector<std::string> take_port_events();
  std::vector<admin::PipelineView> views() const;

 private:
  // A shard of a job that has ended, which a device or a worker of this host may still read.
  struct Retired {
    uint32_t pipeline = 0;
    std::unique_ptr<pipeline::JobShard> shard;
  };
  void free_retired();

  Descriptor reports_;  // event of the control thread
  Prefaulter prefaulter_;
  Hugepages hugepages_ = Hugepages::kIfFree;
  std::vector<Retired> retired_;  // freed once nobody reads them
  std::unique_ptr<Ports> ports_;
  std::vector<std::unique_ptr<PipelineThread>> threads_;
  std::unique_ptr<LaneDesk> desk_;  // null: the box shares no memory
};

}  // namespace pbox::pipelines
