# Warnings are errors in our own code, never in headers of others (those come in as SYSTEM).
function(bringup_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror -Wno-missing-field-initializers)
endfunction()
