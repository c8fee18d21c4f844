// Which box owns which part of a job, as the control plane of one box sees it. Used on the control
// thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

// The parts of one job that run on this box.
struct RunningParts {
  bool may_move = false;           // they could continue on another box
  uint64_t part_memory_bytes = 0;  // memory of the largest of them
  uint32_t protocol_version = 0;   // the oldest with every field that the job uses; 0 for any
};

class PartDirectory {
 public:
  virtual ~PartDirectory() = default;

  // Returns the owner of the part if that is another box; nullopt if this box owns it.
  // kUnavailable: the owner is unknown now. kMismatch: the job is not divided into this number of
  // parts. The answer may be out of date: two boxes may for a while both believe that they own a
  // part. This does no harm, because each worker of the part is with only one of them.
  virtual Result<std::optional<proto::PartPlace>> other_owner(const std::string& job, uint32_t part,
                                                              uint32_t parts) const = 0;

  // Asks for the job's part map. Creates the map if there is none. If the worker reports a lost
  // box, reassigns its parts once the loss is confirmed. `done` is called exactly once, during this
  // call or later.
  using Answer = std::function<void(Result<proto::PartMap>)>;
  virtual void ask(const proto::AskPartMap& question, Answer done) = 0;

  // Asks another box a question; `box` is a name from the part map. `done` is called exactly once.
  // It gets an error if no answer comes within a few seconds or the answer is a FAILURE.
  using BoxAnswer = std::function<void(Result<proto::BoxMessage>)>;
  // NOLINTBEGIN(performance-unnecessary-value-param): overrides keep it.
  virtual void ask_box(const std::string& box, const proto::WorkerMessage& /*question*/,
                       BoxAnswer done) {
    std::move(done)(Error{ErrorCode::kUnavailable, "box " + box + " is not known here"});
  }
  // NOLINTEND(performance-unnecessary-value-param)

  // Returns the boxes that could keep a backup of this part, in the order in which to try them.
  virtual std::vector<proto::PartPlace> backup_candidates(const std::string& /*job*/,
                                                          uint32_t /*part*/) const {
    return {};
  }

  // Corrects the map: this box keeps a part that cannot move, although the map assigns it to
  // another box.
  virtual void reclaim_part(const std::string& /*job*/, uint32_t /*part*/) {}

  // Called if this box has no room for the part. Returns true if another box may have room. The
  // part is then given to that box, and its ranks should ask again.
  virtual bool hand_back(const std::string& /*job*/, uint32_t /*part*/) { return false; }

  // Keeps other boxes from taking a snapshot of the job until release_snapshot(), or until this box
  // is lost. kUnavailable: another box takes one. `done` is called exactly once, during this call
  // or later. Releasing what was not claimed does nothing.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides keep it.
  virtual void claim_snapshot(const std::string& /*job*/, std::function<void(const Status&)> done) {
    std::move(done)(ok_status());
  }
  virtual void release_snapshot(const std::string& /*job*/) {}

  // Called when the job has ended on this box: its ranks have left, or it has failed.
  virtual void on_job_over(const std::string& /*job*/) {}

  // Returns the loads of the parts that run on this box, for the leader of the cluster.
  virtual std::vector<proto::JobLoad> loads() const { return {}; }

  // Returns whether the cluster's store lists a box of this name, or has listed one since this box
  // started: a box whose lease has ended may still have to give its parts' state away.
  virtual bool lists_box(const std::string& /*box*/) const { return false; }

  // Returns whether other boxes could take over this box's parts of the job, or have done so.
  virtual bool has_other_boxes(const std::string&) const { return false; }
};

// The directory of a single box, which owns every part.
class SingleBoxDirectory : public PartDirectory {
 public:
  explicit SingleBoxDirectory(uint32_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  Result<std::optional<proto::PartPlace>> other_owner(const std::string&, uint32_t,
                                                      uint32_t) const override {
    return std::optional<proto::PartPlace>();
  }
  void ask(const proto::AskPartMap&, Answer done) override {
    proto::PartMap map;
    map.add_parts();
    map.set_chunk_bytes(chunk_bytes_);
    map.set_pipelines(pipelines_);
    done(map);
  }
  // Applies to jobs that begin from now on.
  void set_chunk_bytes(uint32_t chunk_bytes) { chunk_bytes_ = chunk_bytes; }
  void set_pipelines(uint32_t pipelines) { pipelines_ = pipelines; }

 private:
  uint32_t chunk_bytes_;
  uint32_t pipelines_ = 1;
};

}  // namespace pbox::control
