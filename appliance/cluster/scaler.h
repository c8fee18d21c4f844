// Adapts how many boxes of a cluster take parts of jobs. The leader watches how much of the boxes'
// memory and links is in use, and which jobs found no room. It lets a standby take parts, asks for
// another box, or empties one, as placement::ScalePolicy decides. Main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "appliance/cluster/balance_view.h"
#include "appliance/cluster/part_maps.h"

namespace pbox::cluster {

class Scaler {
 public:
  // Hands a line of JSON to the operator's program and calls `done` with the program's result.
  using Hook = std::function<void(const std::string& line, std::function<void(Status)> done)>;

  struct Options {
    std::string self;          // name of this box
    std::string cluster = {};  // name of the cluster
    // This box becomes a standby at its start, unless it has parts or a duty already.
    bool begins_as_standby = false;
    bool scales = false;  // if false, standbys wait for an operator
    placement::ScaleRules rules = {};
    std::function<proto::BoxReport()> report;  // returns this box's own report
    Hook hook = {};                            // empty: none
    BoxDirectory::Log log;
  };

  // All arguments passed by reference outlive the scaler.
  Scaler(boost::asio::io_context& context, Store& store, const BoxDirectory& box_directory,
         PartMaps& maps, Options options);
  ~Scaler() { *alive_ = false; }
  Scaler(const Scaler&) = delete;
  Scaler& operator=(const Scaler&) = delete;

  const ScalingView& view() const { return view_; }

 private:
  void tick();
  void begin_as_standby();
  void lead();
  std::vector<placement::ScaledBox> boxes() const;
  const proto::BoxReport* report_of(const std::string& box) const;
  void carry_out(const placement::ScaleDecision& decision);
  void tell_which_may_stop();
  void call_hook(const char* event, const std::string& box, const std::string& reason);

  Store& store_;
  const BoxDirectory& box_directory_;
  PartMaps& part_maps_;
  Options options_;
  Environment& environment_;
  Timer timer_;
  proto::BoxReport own_report_;
  std::optional<placement::ScalePolicy> policy_;  // absent unless this box leads
  // A standby without parts: the time since which it has none, and whether the hook has been told.
  struct Empty {
    Environment::Clock::time_point since;
    bool is_told = false;
  };
  std::map<std::string, Empty> empty_;  // by box
  bool has_begun_ = false;
  ScalingView view_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pbox::cluster
