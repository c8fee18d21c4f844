// Sends SESSION to the members of running jobs, and shares the receive rings of the pipelines out
// as credit. Control thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "appliance/control/registry_context.h"

namespace pbox::control {

// A tenant's sessions on a pipeline.
struct TenantDemand {
  uint32_t weight = 1;
  uint64_t window_bytes = 0;  // the windows of all of them together
};

class SessionSender {
 public:
  // Both outlive it.
  SessionSender(RegistryContext& context, PipelineHost& host) : context_(context), host_(host) {}

  // The job has just opened. `recovers`: it goes on from what its ranks have stated.
  void send_all(Job& job, bool recovers);
  // `open_rounds`: by chunk; empty in a job that begins.
  void send(Job& job, uint32_t rank, const std::vector<uint32_t>& open_rounds);
  // The number of sessions, or the weight of a tenant, has changed: gives each job its new share of
  // the receive rings and of the turns to send.
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
