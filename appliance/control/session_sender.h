// Sends SESSION to the members of running jobs, and divides the receive buffers of the pipelines
// among them as credit. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "appliance/control/registry_context.h"

namespace pbox::control {

// The demand of a tenant's sessions on a pipeline.
struct TenantDemand {
  uint32_t weight = 1;
  uint64_t window_bytes = 0;  // the sum of these sessions' windows
};

class SessionSender {
 public:
  // Both arguments must outlive this object.
  SessionSender(RegistryContext& context, PipelineHost& host) : context_(context), host_(host) {}

  // Sends SESSION to all members of a job that has just opened. `recovers`: the job goes on from
  // what its ranks have stated.
  void send_all(Job& job, bool recovers);
  // Sends SESSION to one rank. `open_rounds`: by chunk; empty in a job that begins.
  void send(Job& job, uint32_t rank, const std::vector<uint32_t>& open_rounds);
  // Call it when the number of sessions, or the weight of a tenant, has changed. Gives each job its
  // new share of the receive buffers and of the turns to send.
  void share_credit();

 private:
  // The running parts on a pipeline.
  struct SharedPipeline {
    std::map<std::string, TenantDemand> tenants;
    std::vector<TenantDemand> demands;      // all of `tenants`
    std::map<std::string, uint32_t> parts;  // number of parts, by job
  };
  std::vector<SharedPipeline> shared_pipelines() const;
  // The most bytes that one worker may have in flight on one pipeline.
  uint64_t window_bytes() const;
  proto::BoxMessage session_for(const Job& job, uint32_t rank, bool has_rounds) const;

  RegistryContext& context_;
  PipelineHost& host_;
};

// Returns the bytes of fragments that the receive queue of a pipeline can hold. A socket has a
// bound on memory, other ports on bytes and on packets.
uint32_t receivable_bytes(const PipelineInfo& info, uint32_t fragment_bytes);

// Returns the bytes that a worker may have in flight on a pipeline in a session whose window is
// `window_bytes`. `tenants`: all tenants that have sessions there; `own`: the worker's.
//
// All sessions of the pipeline together get at most three quarters of the receive buffer, so that
// it never overflows, however the workers' bursts coincide. Tenants get shares in proportion to
// their weights, and a tenant's sessions shares in proportion to their windows.
uint32_t credit_share(uint32_t receive_buffer_bytes, std::span<const TenantDemand> tenants,
                      const TenantDemand& own, uint64_t window_bytes);

}  // namespace pbox::control
