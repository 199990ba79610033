// Streams whose work becomes a node of a graph.
#include "driver_check/graph.h"
#include "driver_check/launches.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int32_t);
constexpr const char* kNeeds =
    "stream_capture_begin stream_capture_end stream_capture_abort stream_capture_query "
    "graph_create graph_destroy graph_launch graph_add_copy";

void begin(Context& context, bringup_stream stream) {
  context.must<&D::stream_capture_begin>(0, stream);
}

void expect_state(Context& context, bringup_stream stream, int32_t wanted, const char* when) {
  int32_t state = -1;
  context.must<&D::stream_capture_query>(0, stream, &state);
  expect(state == wanted, concat("stream_capture_query ", when), wanted, state);
}

void copy_within(Context& context, const Memory& to, const Memory& from, bringup_stream stream) {
  context.copy(BRINGUP_DEVICE_TO_DEVICE, 0, to.data(), from.data(), kBytes, stream);
}

// Three memories and a stream; what is in the last one is seen through another stream.
struct Chain {
  explicit Chain(Context& of)
      : context(of), first(of, 0, kBytes), second(of, 0, kBytes), third(of, 0, kBytes), stream(of) {
    for (const Memory* memory : {&first, &second, &third}) memory->upload(nothing);
  }
  void put(const Bytes& content) { first.upload(content); }
  void expect_third(const Bytes& content, const std::string& what) { third.expect(content, what); }

  Context& context;
  const Bytes nothing = Bytes(kBytes, 0);
  const Memory first, second, third;
  const Stream stream;
};

// In front of the captured node and behind it are nodes that depend on it.
void node(Context& context) {
  Chain chain(context);
  const Memory source(context, 0, kBytes);
  Graph graph(context);
  graph.add_copy(BRINGUP_DEVICE_TO_DEVICE, chain.first.data(), source.data(), kBytes);
  begin(context, chain.stream);
  copy_within(context, chain.second, chain.first, chain.stream);
  copy_within(context, chain.third, chain.second, chain.stream);
  context.must<&D::stream_capture_end>(0, chain.stream, graph);
  Bytes result(kBytes, 0);
  graph.add_copy(BRINGUP_DEVICE_TO_HOST, result.data(), chain.third.data(), kBytes);
  chain.expect_third(chain.nothing, "what captured work wrote before the graph was launched");
  for (uint64_t round = 1; round <= 3; ++round) {
    const Bytes content = pattern(kBytes, round);
    source.upload(content, chain.stream);
    graph.launch(chain.stream);
    context.synchronize(0, chain.stream);
    expect_bytes(result, content, concat("graph_launch of captured copies, the ", round, ". time"));
  }
}

void aborted(Context& context) {
  Chain chain(context);
  begin(context, chain.stream);
  copy_within(context, chain.third, chain.first, chain.stream);
  chain.put(pattern(kBytes, 1));
  context.must<&D::stream_capture_abort>(0, chain.stream);
  context.synchronize(0, chain.stream);
  chain.expect_third(chain.nothing, "what a capture wrote that was aborted");
  copy_within(context, chain.third, chain.first, chain.stream);
  context.synchronize(0, chain.stream);
  chain.expect_third(pattern(kBytes, 1), "a copy in the stream after stream_capture_abort");
}

void waits(Context& context) {
  Chain chain(context);
  Graph graph(context);
  begin(context, chain.stream);
  copy_within(context, chain.third, chain.first, chain.stream);
  context.must_fail<&D::stream_synchronize>("for a stream that is captured", 0, chain.stream);
  expect_state(context, chain.stream, BRINGUP_CAPTURE_BROKEN, "after a wait in the capture");
  context.must_fail<&D::stream_capture_end>("for a capture that is broken", 0, chain.stream,
                                            static_cast<bringup_graph>(graph));
  expect_state(context, chain.stream, BRINGUP_CAPTURE_NONE, "after stream_capture_end failed");
  chain.put(pattern(kBytes, 2));
  graph.launch(chain.stream);
  context.synchronize(0, chain.stream);
  chain.expect_third(chain.nothing, "what a graph wrote that got nothing of a broken capture");
}

void states(Context& context) {
  const Stream stream(context);
  Graph graph(context);
  expect_state(context, stream, BRINGUP_CAPTURE_NONE, "of a stream that was never captured");
  begin(context, stream);
  expect_state(context, stream, BRINGUP_CAPTURE_ACTIVE, "of a stream that is captured");
  context.must_fail<&D::stream_capture_begin>("for a stream that is captured", 0, stream);
  context.must_give<&D::stream_capture_end>(BRINGUP_INVALID, 0, stream,  // nothing was given
                                            static_cast<bringup_graph>(graph));
  expect_state(context, stream, BRINGUP_CAPTURE_NONE, "after stream_capture_end");
  context.must_give<&D::stream_capture_end>(BRINGUP_INVALID, 0, stream,
                                            static_cast<bringup_graph>(graph));
  context.must_give<&D::stream_capture_abort>(BRINGUP_INVALID, 0, stream);
}

void kernels(Context& context) {
  Module module(context);
  const Bytes zero(kBytes, 0);
  const Bytes values = integers(kCount, 3, 2);
  const Arrays on(context, zero, values);
  const Work work(context, module, on.out.data(), on.x.data(), kCount, 4);
  Graph graph(context);
  begin(context, on.stream);
  work.launch(on.stream);
  work.launch(on.stream);
  context.must<&D::stream_capture_end>(0, on.stream, static_cast<bringup_graph>(graph));
  work.expect_released(0, "while the graph lives");
  for (int i = 0; i < 3; ++i) graph.launch(on.stream);
  expect_bytes(on.result(), accumulated(zero, values, 24),
               "graph_launch of two captured launches, three times");
  graph.destroy();
  context.synchronize(0, on.stream);
  work.expect_released(2, "after graph_destroy");
}

}  // namespace

std::vector<Check> capture_checks() {
  static const std::string of_kernels =
      std::string(kNeeds) + " module_load module_unload get_function launch|launch_values";
  return {
      {"capture.node", "stream_capture_end",
       "What was given does not run; it becomes one node behind those that the graph has.", node,
       kNeeds},
      {"capture.abort", "stream_capture_abort", "Drops all of it, and the stream runs again.",
       aborted, kNeeds},
      {"capture.waits", "stream_capture_end",
       "A wait breaks the capture; end of a broken one fails and adds nothing.", waits, kNeeds},
      {"capture.states", "stream_capture_query",
       "A stream is captured once at a time; end and abort of one that is not captured are "
       "BRINGUP_INVALID, and so is end where nothing was given.",
       states, kNeeds},
      {"capture.kernels", "stream_capture_begin",
       "Launches are captured; what a bringup_launch points at is released with the graph.",
       kernels, of_kernels.c_str()},
  };
}

}  // namespace bringup::driver_check
