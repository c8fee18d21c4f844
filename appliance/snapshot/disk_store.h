// Keeps snapshots in a folder and writes and reads them on a thread of its own.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "appliance/snapshot/store.h"

namespace pbox::snapshot {

// Created, used and destroyed on the thread that runs `context`, which outlives it. Destroying it
// abandons writes and reads in progress.
class DiskSnapshotStore : public SnapshotStore {
 public:
  // `on_done` is called after each answer, to carry out what the answer has caused.
  DiskSnapshotStore(boost::asio::io_context& context, std::string directory,
                    std::function<void()> on_done);
  ~DiskSnapshotStore() override;

  void begin(const std::string& job, std::function<void(Result<uint64_t>)> done) override;
  void write_part(uint64_t number, PartHead head, Cuts cuts,
                  std::function<void(Result<PartFile>)> done) override;
  void finish(Manifest manifest, std::function<void(Status)> done) override;
  void discard(const std::string& job, uint64_t number) override;
  void load(PartHead part, Choice choice, std::function<void(Result<Restored>)> done) override;

 private:
  template <typename Work, typename Done>
  void run(Work work, Done done);

  boost::asio::io_context& context_;
  std::string directory_;
  std::function<void()> on_done_;
  std::atomic<bool> stopped_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  boost::asio::thread_pool thread_{1};
};

}  // namespace pbox::snapshot
