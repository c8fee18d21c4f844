// A worker's session on a pipeline. Only the pipeline's core touches it; other threads read the
// counters.
#pragma once

#include <cstdint>
#include <optional>

#include "base/counter.h"
#include "nic/endpoint.h"
#include "nic/seal/session_seal.h"
#include "pipeline/observe/gradient_squares.h"

namespace pbox::pipeline {

struct Session {
  uint32_t spi = 0;
  uint32_t rank = 0;
  // The worker's address, and the box's address that it sends to. Learned from the worker's
  // authentic packets; valid if `reachable`.
  nic::Endpoint endpoint;
  nic::LocalAddress local_address{};
  uint64_t newest_packet_number = 0;  // the highest in a packet from `endpoint`
  bool reachable = false;
  std::optional<nic::Endpoint> known_host;  // as in SessionSpec
  bool takes_zeros = false;                 // as in SessionSpec
  bool is_settled = false;                  // only an echoed challenge changes `endpoint`
  nic::Endpoint challenged;                 // where `challenge` was sent
  uint64_t challenge = 0;                   // 0: no challenge waits for its echo
  bool present = true;     // false: excluded; no round waits for the rank and it is sent nothing
  seal::SessionSeal seal;  // set before the session begins; each new session has a new one
  // The updates of this seal's keys that the counters include already.
  uint64_t counted_updates_sent = 0, counted_updates_received = 0;
  uint32_t credit_bytes = 0;
  int64_t resend_budget_bytes = 0;
  uint64_t resend_refill_ns = 0;
  SingleWriterCounter bytes_received, fragments_received, duplicates, last_arrivals, last_packet_ns;
  // Number of fragments that contained an unsound value (wire::GuardSpec); the newest of them, as
  // chunk << 32 | round modulo 2^32; and the time of that one.
  SingleWriterCounter nonfinite, nonfinite_chunk_round, nonfinite_at_ns;
  GradientSquares squares;
  // Model `drop`: number of fragments that came after their round had closed and do not count, and
  // of chunk rounds that closed without all of the rank's push.
  SingleWriterCounter dropped, missed;
  // From the straggler ledger, over the rounds in which this rank was last: how late it was in sum
  // and at worst, and the chunk << 32 | round modulo 2^32 and the time of that worst case.
  SingleWriterCounter late_ns, worst_late_ns, worst_chunk_round, worst_at_ns;
  // How long the other ranks have waited for a push of this rank, and the chunk and round of that
  // push. 0 if they do not wait. As of the last Engine::tick.
  SingleWriterCounter awaited_ns, awaited_chunk_round;

  bool is_at(const nic::Endpoint& address) const { return reachable && endpoint == address; }
  // Sets the worker's address, and the box's address that it sends to.
  void move_to(const nic::Endpoint& address, const nic::LocalAddress& local) {
    endpoint = address;
    local_address = local;
    reachable = true;
  }
  // Returns whether `number` is the challenge sent to `address`. Accepts each challenge only once.
  bool take_proof(const nic::Endpoint& address, uint64_t number);
  // Called when a session begins: the worker's address is unknown.
  void forget_address(const std::optional<nic::Endpoint>& host);
  void note_nonfinite(uint32_t chunk, uint32_t round, uint64_t now_ns);
  // The budget keeps duplicates from causing a flood of resends: a session may be sent four windows
  // of its credit again at once, and gets back one window per millisecond.
  void fill_resend_budget() { resend_budget_bytes = 4 * int64_t{credit_bytes}; }
  bool has_resend_budget(uint64_t now_ns);
  void charge_resend(uint64_t mask, uint32_t fragment_bytes);
};

}  // namespace pbox::pipeline
