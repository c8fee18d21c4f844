// A box with keys under attack: two honest ranks of a tenant train through it, another job of that
// tenant has weights and a snapshot on its disk, and the box's state is compared with its state
// before the attack.
#pragma once

#include <memory>
#include <string>

#include "tests/support/box_cluster.h"
#include "tests/support/key_folder.h"
#include "tests/support/secure_peer.h"

namespace pbox::test {

inline constexpr char kHonestJob[] = "acme/sums";
inline constexpr char kWeightsJob[] = "acme/weights";
// The tensor of the weights: no stranger may learn its name or size.
inline constexpr char kSecretTensor[] = "unannounced.attention";
inline constexpr uint64_t kSecretElements = 54'321;

class AttackedSite {
 public:
  // Starts pboxd with `flags` after its other flags. The honest job's ranks begin rounds, which go
  // on for a while.
  explicit AttackedSite(const Arguments& flags = {});

  // Ends the rounds under way, runs more, and lets the honest rank step once. Throws unless all
  // sums are exact and the weights are those of that rank's steps alone. Also throws unless jobs,
  // their ranks, and the files of snapshots and epochs are as they were when the object was made.
  void check();
  // Ends the rounds under way, and begins more.
  void begin_more_rounds();
  // Called if the attacker has jobs of its own, which take epochs and lose ranks like any other
  // job.
  void allow_other_jobs() { has_other_jobs_ = true; }

  const tls::KeyPair& signer() const { return signer_; }
  Daemon& daemon() { return daemon_; }
  // Returns the keys of a tenant other than the honest one.
  const tls::Credentials& stranger() const { return *stranger_; }
  const tls::Credentials& honest() const { return *honest_; }

 private:
  std::string state() const;
  std::string course_of_jobs() const;
  std::string counts(const std::vector<std::string>& metrics) const;
  SteadyTraining::Options training_options() const;
  WorkerProcess hold_weights() const;
  void snapshot() const;

  tls::KeyPair signer_ = authority();
  KeyFolder box_keys_, honest_keys_, stranger_keys_;
  std::shared_ptr<const tls::Credentials> honest_, stranger_;
  TemporaryFolder epochs_, snapshots_;
  Daemon daemon_;
  SteadyTraining training_;
  WorkerProcess weights_;
  bool has_other_jobs_ = false;
  std::string before_, course_before_;
};

}  // namespace pbox::test
