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
  // Learned from the worker's authentic packets: where it is, and the address of the box that it
  // uses. Valid if `reachable`.
  nic::Endpoint endpoint;
  nic::LocalAddress local_address{};
  uint64_t newest_packet_number = 0;  // the highest in a packet from `endpoint`
  bool reachable = false;
  std::optional<nic::Endpoint> known_host;  // as in SessionSpec
  bool takes_zeros = false;                 // as in SessionSpec
  bool is_settled = false;                  // only an echoed challenge changes `endpoint`
  nic::Endpoint challenged;                 // where `challenge` was sent
  uint64_t challenge = 0;                   // 0: none is under way
  bool present = true;     // false: excluded; no round waits for the rank and it is sent nothing
  seal::SessionSeal seal;  // given before the session begins, and replaced when another one does
  // Updates of this seal's keys that the counters contain.
  uint64_t counted_updates_sent = 0, counted_updates_received = 0;
  uint32_t credit_bytes = 0;
  int64_t resend_budget_bytes = 0;
  uint64_t resend_refill_ns = 0;
  SingleWriterCounter bytes_received, fragments_received, duplicates, last_arrivals, last_packet_ns;
  // Fragments that contained an unsound value (wire::GuardSpec). The newest of them, as
  // chunk << 32 | round modulo 2^32, and its time.
  SingleWriterCounter nonfinite, nonfinite_chunk_round, nonfinite_at_ns;
  GradientSquares squares;
  // Model `drop`: fragments that came after their round had closed and do not count, and rounds of
  // chunks that closed without all of the rank's push.
  SingleWriterCounter dropped, missed;
  // From the straggler ledger, over the rounds in which this rank was last: how late it was in sum
  // and at worst, and when that was (chunk << 32 | round modulo 2^32).
  SingleWriterCounter late_ns, worst_late_ns, worst_chunk_round, worst_at_ns;
  // How long the other ranks have waited for this rank's push, and of which chunk and round. 0:
  // they do not wait. As of the last Engine::tick.
  SingleWriterCounter awaited_ns, awaited_chunk_round;

  bool is_at(const nic::Endpoint& address) const { return reachable && endpoint == address; }
  // The worker is at `address`, and uses `local` of the box.
  void move_to(const nic::Endpoint& address, const nic::LocalAddress& local) {
    endpoint = address;
    local_address = local;
    reachable = true;
  }
  // Returns whether `number` is the challenge that was sent to `address`. It counts once.
  bool take_proof(const nic::Endpoint& address, uint64_t number);
  // A session begins: nothing is known of where the worker is.
  void forget_address(const std::optional<nic::Endpoint>& host);
  void note_nonfinite(uint32_t chunk, uint32_t round, uint64_t now_ns);
  // The bound on resends keeps duplicates from being turned into a flood: a session may be resent
  // four windows of its credit at once, refilled at one window per millisecond.
  void fill_resend_budget() { resend_budget_bytes = 4 * int64_t{credit_bytes}; }
  bool has_resend_budget(uint64_t now_ns);
  void charge_resend(uint64_t mask, uint32_t fragment_bytes);
};

}  // namespace pbox::pipeline
