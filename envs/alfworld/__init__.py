"""ALFWorld: household tasks in text, played on TextWorld's own planner and grammar.

`family.AlfWorldFamily` is what a trainer holds, `env.AlfWorldEnv` what a sandbox runs. Nothing here
imports the engine until an environment is made or games are generated.
"""
