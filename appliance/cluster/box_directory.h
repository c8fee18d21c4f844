// The boxes of the cluster. Registers this box, runs for leader and lists the other boxes. Main
// thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "appliance/cluster/box_record.h"
#include "appliance/cluster/claim.h"

namespace pbox::cluster {

class BoxDirectory {
 public:
  enum class Severity { kInfo, kWarning };
  using Log = std::function<void(Severity severity, const char* event, const std::string& text)>;

  // `store` must have been started. `store` and `context` outlive the directory. `on_change` is
  // called whenever a box has registered, has changed its record or is no longer registered.
  BoxDirectory(boost::asio::io_context& context, Store& store, const BoxRecord& self, Log log,
               std::function<void()> on_change);

  // Must be called whenever the store's session changes.
  void on_session();

  // Register another capacity of this box (BoxRecord::capacity_bytes_per_s), and another memory for
  // jobs (BoxRecord::job_memory_bytes). No effect if it is the present one.
  void set_capacity(uint64_t bytes_per_s);
  void set_job_memory(uint64_t bytes);

  // All registered boxes as last seen in the store, sorted by name. Valid until `on_change` is
  // called.
  const std::vector<BoxRecord>& boxes() const { return records_; }
  // Returns a box as last seen in the store, also after its lease has ended; null if it was never
  // seen. A box whose lease has ended may still run: it may only have been short of processor time.
  const BoxRecord* last_record(const std::string& box) const;
  std::optional<Leader> leader() const;  // as last seen in the store
  bool leads() const { return lead_.held(); }
  // The condition that every write reserved for the leader must carry.
  Condition lead_fence() const { return lead_.fence(); }

 private:
  void read_records();
  void on_registered();
  void on_lead();

  BoxRecord self_;
  Log log_;
  bool was_registered_ = false;
  bool had_lead_ = false;
  std::string rival_;  // incarnation of another box that holds this box's name; empty: none
  std::vector<BoxRecord> records_;                 // parsed from the entries of boxes_
  std::map<std::string, BoxRecord> last_records_;  // by name
  Mirror boxes_;
  Claim registration_;
  Claim lead_;
};

}  // namespace pbox::cluster
