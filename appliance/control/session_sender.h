// Sends SESSION to the members of running jobs, and shares the receive rings of the pipelines out
// as credit. Control thread.
#pragma once

#include <cstdint>
#include <vector>

#include "appliance/control/registry_context.h"

namespace pbox::control {

class SessionSender {
 public:
  // All outlive it.
  SessionSender(RegistryContext& context, PipelineHost& host, const SpiAllocator& spis)
      : context_(context), host_(host), spis_(spis) {}

  // The job has just opened. `recovers`: it goes on from what its ranks have stated.
  void send_all(Job& job, bool recovers);
  // `open_rounds`: by chunk; empty in a job that begins.
  void send(Job& job, uint32_t rank, const std::vector<uint32_t>& open_rounds);
  // The number of sessions has changed: gives each job its new share of the receive rings.
  void share_credit();

 private:
  uint32_t credit_on(uint32_t pipeline, const Job& job) const;
  uint32_t credit_on(uint32_t pipeline, const Job& job, uint32_t parts) const;
  proto::BoxMessage session_for(const Job& job, uint32_t rank, bool has_rounds) const;

  RegistryContext& context_;
  PipelineHost& host_;
  const SpiAllocator& spis_;
};

// Returns the bytes of fragments that the receive queue of a pipeline can hold. A socket has a
// bound on memory, other ports on bytes and on packets.
uint32_t receivable_bytes(const PipelineInfo& info, uint32_t fragment_bytes);

// Returns the bytes that a worker may have in flight on a pipeline for one part of its job, if
// `parts` parts of the job are on that pipeline. All parts together get at most `window_bytes` (0
// means 1 MiB), because they share one path. All `sessions` of the pipeline together get at most
// three quarters of the receive buffer, so that it never overflows, however the workers' bursts
// coincide.
uint32_t credit_share(uint32_t receive_buffer_bytes, uint32_t sessions, uint32_t window_bytes,
                      uint32_t parts);

}  // namespace pbox::control
