// What cannot be meant as a pattern.
#include "engine/pattern/pattern.h"

#include "engine/graph/text.h"

namespace bringup::engine {
namespace {

constexpr uint32_t kMostAlternatives = 256;
constexpr size_t kDeepest = 64;  // nesting of lists

class Checker {
 public:
  explicit Checker(const Pattern& pattern) : pattern_(pattern), graph_(*pattern.graph) {}

  void run() {
    if (graph_.outputs().empty()) refuse("has no output");
    check_order();
    check_alternatives();
    for (const ValueId output : graph_.outputs()) check_output(output);
    const std::vector<ValueId> inputs = graph_.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph_.users(inputs[i]).empty()) {
        throw_error(ErrorCode::kPass, "input ", i, " of pattern ", in_quotes(pattern_.name),
                    " is used nowhere in it");
      }
    }
    check_needed();
    check_control_edges();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw_error(ErrorCode::kPass, "pattern ", in_quotes(pattern_.name), " ", what);
  }

  std::string node_name(NodeId node) const { return in_quotes(graph_.name_text(node)); }

  bool is_choice(NodeId node) const { return Strings::text(graph_.type(node)) == kOneOf; }

  void check_order() const {
    for (NodeId node = graph_.first(); node != kNoNode; node = graph_.next(node)) {
      const ArgumentSpan all = graph_.all_arguments(node);
      for_each_value(all, [&](ValueId value) {
        if (graph_.is_before(value.node, node)) return;
        refuse(concat("cannot run: ", node_name(node), " reads ", node_name(value.node),
                      ", which comes after it"));
      });
      std::vector<size_t> ends;  // of the nests around an item
      for (size_t i = 0; i < all.size(); ++i) {
        while (!ends.empty() && ends.back() <= i) ends.pop_back();
        if (all[i].is_nest()) ends.push_back(i + 1 + all[i].extent);
        if (ends.size() > kDeepest) refuse("has lists nested more than 64 deep");
      }
    }
  }

  // How many alternatives a choice has in the end, choices among them opened.
  void check_alternatives() const {
    std::unordered_map<NodeId, uint32_t> counts;
    for (NodeId node = graph_.first(); node != kNoNode; node = graph_.next(node)) {
      if (!is_choice(node)) continue;
      uint32_t count = 0;
      const ArgumentSpan run = graph_.arguments(node);
      for (size_t i = 0; i < run.size(); i += 1 + size_t{run[i].extent}) {
        const bool is_value = run[i].tag == Tag::kValue;
        const bool opened = is_value && is_choice(run[i].value.node);
        count += opened ? counts[run[i].value.node] : 1;
        if (count > kMostAlternatives) {
          refuse(concat("has more than 256 alternatives at ", node_name(node)));
        }
      }
      if (count == 0) refuse(concat("has no alternative at ", node_name(node)));
      counts[node] = count;
    }
  }

  void check_output(ValueId output) const {
    std::vector<ValueId> agenda = {output};
    while (!agenda.empty()) {
      const ValueId value = agenda.back();
      agenda.pop_back();
      if (!is_choice(value.node)) continue;
      const ArgumentSpan run = graph_.arguments(value.node);
      for (size_t i = 0; i < run.size(); i += 1 + size_t{run[i].extent}) {
        if (run[i].tag != Tag::kValue) {
          refuse(concat("returns ", in_quotes(value_name(graph_, output)), ", which may be ",
                        argument_text(graph_, item_at(run, i)),
                        ": only what an operator computes can be replaced"));
        }
        agenda.push_back(run[i].value);
      }
    }
  }

  void check_needed() const {
    std::vector<bool> needed(graph_.end());
    std::vector<NodeId> agenda;
    for (const ValueId output : graph_.outputs()) agenda.push_back(output.node);
    while (!agenda.empty()) {
      const NodeId node = agenda.back();
      agenda.pop_back();
      if (needed[node]) continue;
      needed[node] = true;
      for_each_value(graph_.all_arguments(node),
                     [&](ValueId value) { agenda.push_back(value.node); });
    }
    for (NodeId node = graph_.first(); node != graph_.last(); node = graph_.next(node)) {
      if (needed[node]) continue;
      throw_error(ErrorCode::kPass, "node ", node_name(node), " of pattern ",
                  in_quotes(pattern_.name), " contributes to no output");
    }
  }

  void check_control_edges() const {
    if (!graph_.has_control_edges()) return;
    for (NodeId node = graph_.first(); node != kNoNode; node = graph_.next(node)) {
      const bool has_edge =
          !graph_.control_inputs(node).empty() || !graph_.control_users(node).empty();
      if (!has_edge || !is_choice(node)) continue;
      refuse(concat("has a control edge at ", node_name(node),
                    ", which stands for alternatives: it must be said of each of them"));
    }
  }

  const Pattern& pattern_;
  const Graph& graph_;
};

}  // namespace

void check_pattern(const Pattern& pattern) {
  if (pattern.graph == nullptr) throw_error(ErrorCode::kInvalid, "a pattern is made from a graph");
  Checker(pattern).run();
}

}  // namespace bringup::engine
