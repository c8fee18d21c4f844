#include "pipeline/session.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::pipeline {

bool Session::take_proof(const nic::Endpoint& address, uint64_t number) {
  if (challenge == 0 || number != challenge || address != challenged) return false;
  challenge = 0;
  is_settled = true;
  return true;
}

void Session::forget_address(const std::optional<nic::Endpoint>& host) {
  known_host = host;
  newest_packet_number = 0;
  reachable = is_settled = false;
  challenge = 0;
}

void Session::note_nonfinite(uint32_t chunk, uint32_t round, uint64_t now_ns) {
  nonfinite.add(1);
  nonfinite_chunk_round.set(uint64_t{chunk} << 32 | round);
  nonfinite_at_ns.set(now_ns);
}

bool Session::has_resend_budget(uint64_t now_ns) {
  const int64_t full = 4 * int64_t{credit_bytes};
  const uint64_t elapsed_ms = (now_ns - resend_refill_ns) / kNanosPerMilli;
  if (elapsed_ms > 0) {
    resend_refill_ns = now_ns;
    const auto refill =
        static_cast<int64_t>(elapsed_ms < 4 ? elapsed_ms : 4) * int64_t{credit_bytes};
    resend_budget_bytes = std::min(full, resend_budget_bytes + refill);
  }
  return resend_budget_bytes > 0;
}

void Session::charge_resend(uint64_t mask, uint32_t fragment_bytes) {
  PBOX_DCHECK(resend_budget_bytes > 0);
  resend_budget_bytes -= int64_t{__builtin_popcountll(mask)} * fragment_bytes;
}

}  // namespace pbox::pipeline
