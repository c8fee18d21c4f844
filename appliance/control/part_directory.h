// Which box has which part of a job, as the control plane of one box sees it. Main thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::appliance {

class PartDirectory {
 public:
  virtual ~PartDirectory() = default;

  // Nothing: this box has it. kUnavailable: it is not known now. kMismatch: the job is not planned
  // in so many parts. What one box knows may be out of date: two may for a while both believe to
  // have a part, which does no harm, since each of its workers is with one of them.
  virtual Result<std::optional<proto::PartPlace>> elsewhere(const std::string& job, uint32_t part,
                                                            uint32_t parts) const = 0;

  // Where all parts of the job are; plans it if nobody has, and gives away the parts of the box
  // that the worker has lost if that is so. `done` is called once, at once or later.
  using Answer = std::function<void(Result<proto::PartMap>)>;
  virtual void ask(const proto::AskPartMap& question, Answer done) = 0;

  // Asks another box something; the names of boxes are the map's. `done` is called once, with an
  // error if there is no answer within some seconds, or a FAILURE.
  using BoxAnswer = std::function<void(Result<proto::BoxMessage>)>;
  virtual void ask_box(const std::string& box, const proto::WorkerMessage& /*question*/,
                       BoxAnswer done) {
    done(Error{ErrorCode::kUnavailable, "box " + box + " is not known here"});
  }

  // Boxes that are there and could have a copy of this part, in the order of trying.
  virtual std::vector<proto::PartPlace> backups(const std::string& /*job*/,
                                                uint32_t /*part*/) const {
    return {};
  }

  // This box goes on with a part that cannot go elsewhere, whatever the map says of it.
  virtual void take_back(const std::string& /*job*/, uint32_t /*part*/) {}

  // The job has ended here: its ranks have left, or it has failed.
  virtual void on_job_over(const std::string& /*job*/) {}

  // There are boxes that would take over what this one has of the job, or have done so.
  virtual bool has_others(const std::string&) const { return false; }
};

// Of a box that is alone.
class SingleBoxDirectory : public PartDirectory {
 public:
  explicit SingleBoxDirectory(uint32_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  Result<std::optional<proto::PartPlace>> elsewhere(const std::string&, uint32_t,
                                                    uint32_t) const override {
    return std::optional<proto::PartPlace>();
  }
  void ask(const proto::AskPartMap&, Answer done) override {
    proto::PartMap plan;
    plan.add_parts();
    plan.set_chunk_bytes(chunk_bytes_);
    done(plan);
  }
  // For jobs that begin from now on.
  void set_chunk_bytes(uint32_t chunk_bytes) { chunk_bytes_ = chunk_bytes; }

 private:
  uint32_t chunk_bytes_;
};

}  // namespace pbox::appliance
