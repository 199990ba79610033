// The c10d backend "bringup": torch.distributed on device tensors, by the driver's own collectives
// or by gloo on the host.
#pragma once

#include <c10/util/FunctionRef.h>

#include <set>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "torch/distributed/driver_group.h"
#include "torch/distributed/poster.h"
#include "torch/distributed/work.h"

namespace bringup::distributed {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

class DeviceBackend final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    using c10d::Backend::Options::Options;
  };
  // A gloo group of these ranks over a store.
  using MakeGloo = std::function<BackendPtr(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout)>;

  // `by_driver`: what the driver has of its own is used.
  DeviceBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                const c10::intrusive_ptr<Options>& options, MakeGloo make_gloo, bool by_driver);
  // Waits for the threads of the group.
  ~DeviceBackend() override;

  const std::string getBackendName() const override { return "bringup"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void enableCollectivesTiming() override {}
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void eagerConnectSingleDevice(at::Device device) override;
  void shutdown() override;
  void abort() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  // Lends tensors, and returns what gives them to gloo.
  using Post = std::function<WorkPtr(c10d::Backend& gloo)>;
  using Lend = c10::function_ref<Post(Loan& loan)>;
  WorkPtr start(c10d::OpType op, const std::vector<Tensors>& inputs, Tensors outputs, Lend lend);
  void submit(const c10::intrusive_ptr<DeviceWork>& work, const std::set<c10::DeviceIndex>& devices,
              Lend lend);
  // The driver's own; null where it has none. `give` is not called without a tensor.
  WorkPtr start_own(c10d::OpType op, const std::vector<Tensors>& inputs, const Tensors& outputs,
                    const DriverGroup::Give& give);
  WorkPtr started(WorkPtr work);  // which may be one of several
  Tensors checked(const std::vector<Tensors>& inputs, const Tensors& outputs) const;
  void check_rank(int64_t rank) const;
  // What moves from inputs to outputs, and what is reduced in place.
  template <class Inputs, class Outputs, class Call>
  WorkPtr exchange(c10d::OpType op, const Inputs& inputs, const Outputs& outputs, Call call);
  template <class Asked, class Call>
  WorkPtr reduced(c10d::OpType op, const Tensors& tensors, const Asked& options, Call call);
  WorkPtr scatter_reduced(c10d::OpType op, const Tensors& outputs,
                          const std::vector<Tensors>& inputs,
                          const c10d::ReduceScatterOptions& options);
  int64_t part_of_rank(const at::Tensor& output, const Tensors& input) const;
  WorkPtr own_all_gather(c10d::OpType op, const Tensors& outputs, const at::Tensor& input);
  WorkPtr own_all_to_all(c10d::OpType op, const Tensors& outputs, const Tensors& inputs,
                         const std::vector<size_t>& output_bytes,
                         const std::vector<size_t>& input_bytes);

  const c10::intrusive_ptr<Options> options_;
  const MakeGloo make_gloo_;
  BackendPtr gloo_;
  std::unique_ptr<DriverGroup> own_;  // null: all go through gloo
  const std::shared_ptr<CopyStreams> copy_streams_ = std::make_shared<CopyStreams>();
  std::unique_ptr<Poster> poster_;
  std::mutex coalescing_;
  std::optional<std::vector<WorkPtr>> coalesced_;
  const int process_;
};

}  // namespace bringup::distributed
