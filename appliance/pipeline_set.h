// All pipelines of the box, as the control plane (PipelineHost) and the admin side (views) see
// them.
#pragma once

#include <memory>
#include <vector>

#include "appliance/admin/source.h"
#include "appliance/control/pipeline_host.h"
#include "appliance/pipeline_thread.h"

namespace pbox::appliance {

class PipelineSet : public PipelineHost {
 public:
  // Opens and starts a thread per pipeline of the plan.
  static Result<std::unique_ptr<PipelineSet>> start(const Topology& topology,
                                                    const config::Config& config);

  uint32_t count() const override { return static_cast<uint32_t>(threads_.size()); }
  PipelineInfo info(uint32_t pipeline) const override;
  void execute(uint32_t pipeline, pipeline::Command command) override;
  std::vector<PipelineView> views() const;

 private:
  Hugepages hugepages_ = Hugepages::kIfFree;
  std::vector<std::unique_ptr<PipelineThread>> threads_;
};

}  // namespace pbox::appliance
