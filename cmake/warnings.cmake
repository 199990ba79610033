# Warnings are errors in our own code, never in headers of others (those come in as SYSTEM).
function(bringup_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror -Wno-missing-field-initializers
    # g++ 13 finds a dangling reference in every loop over a list of torch.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-dangling-reference>)
endfunction()
