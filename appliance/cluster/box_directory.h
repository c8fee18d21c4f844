// This box among the boxes of its cluster: it registers itself, runs for leader, and knows the
// others. Main thread.
#pragma once

#include <optional>

#include "appliance/cluster/box_record.h"
#include "appliance/cluster/claim.h"

namespace pbox::cluster {

class BoxDirectory {
 public:
  enum class Severity { kInfo, kWarning };
  using Log = std::function<void(Severity severity, const char* event, const std::string& text)>;

  // `store` was started and, like `context`, outlives the membership.
  BoxDirectory(boost::asio::io_context& context, Store& store, const BoxRecord& self, Log log);

  // To be called when the store's session has changed.
  void on_session();

  std::vector<BoxRecord> boxes() const;  // as last heard, by name
  std::optional<Leader> leader() const;  // as last heard
  bool leads() const { return lead_.held(); }
  // Of what only the leader may write.
  Condition lead_fence() const { return lead_.fence(); }

 private:
  void on_registered();
  void on_lead();

  BoxRecord self_;
  Log log_;
  bool was_registered_ = false;
  bool had_lead_ = false;
  std::string rival_;  // the incarnation that holds this box's name
  Mirror boxes_;
  Claim registration_;
  Claim lead_;
};

}  // namespace pbox::cluster
